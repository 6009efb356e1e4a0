/**
 * Background commands: started once, they belong to no request. The machine is the truth of them: it runs them, keeps
 * their output, and still has both after this server was restarted. The table remembers that a command was, and how it
 * ended where anybody saw that, for the time after the machine. This folder promises that a command which was answered
 * can be asked for as long as its sandbox's record is there; where nobody can say how it ended, it is `lost`.
 */
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { newId } from "#lib/ids.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { deniedField } from "../exec/denied.ts";
import { blameDirectory, exitCode, killedBy } from "../exec/exec.ts";
import { reportOutOfMemory } from "../sandboxes/machine-events/out-of-memory.ts";
import { processPlace } from "../sandboxes/lifecycle/process-defaults.ts";
import { getSandbox, inside } from "../sandboxes/sandboxes.ts";
import { commandNotFound, commandNotReading } from "./errors.ts";
import { type Command, type CommandInput, type CommandStart, toCommand } from "./schema.ts";
import { type CommandRow, findCommand, listCommands, saveCommands } from "./store.ts";

export type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** Most commands end within this after SIGTERM; a delete then answers how, and does not wait for the others. */
const killedWithinMs = 500;

/** `begins` is told the id before anything runs. */
export function startCommand(
  app: Needs,
  actor: Actor,
  id: string,
  input: CommandStart,
  begins: (command: string) => Promise<void> = async () => {},
): Promise<Command> {
  return inside(app, actor, id, async (guest, sandbox) => {
    const command = newId("cmd_");
    await begins(command);
    // Read before the start, because the end that the guest reports must not be earlier.
    const started_at = app.clock.now();
    const { pid } = await guest
      .startCommand({
        id: command,
        ...(input.args ? { argv: input.args } : { shell: input.command ?? "" }),
        ...processPlace(sandbox, input),
        ...(input.env === undefined ? {} : { env: input.env }),
        ...(input.tag === undefined ? {} : { tag: input.tag }),
        ...(input.timeout_seconds === undefined ? {} : { timeoutMs: input.timeout_seconds * 1000 }),
      })
      .catch(blameDirectory);
    // The pipe buffers the whole input. A command that ended or closed its input first is not an error.
    const stdin = input.stdin === undefined ? undefined : Buffer.from(input.stdin, "base64");
    if (stdin) await guest.writeCommandStdin(command, stdin, true).catch(() => {});
    const text = input.command ?? input.args?.join(" ") ?? "";
    const tag = input.tag ?? null;
    return toCommand(await saveStarted(app, id, { id: command, command: text, tag, pid, started_at }));
  });
}

/** Writes down a command that its machine has just started. */
export async function saveStarted(
  app: Pick<App, "db">,
  sandboxId: string,
  started: Pick<CommandRow, "id" | "command" | "tag" | "pid" | "started_at">,
): Promise<CommandRow> {
  const row: CommandRow = {
    sandbox_id: sandboxId,
    ...started,
    status: "running",
    exit_code: null,
    killed_by: null,
    ended_at: null,
    output_bytes: 0,
  };
  await saveCommands(app.db, [row]);
  return row;
}

export async function getCommand(app: Needs, actor: Actor, id: string, command: string): Promise<Command> {
  const stored = await findStored(app, actor, id, command);
  if (!stored.isAlive) return toCommand(known(stored.row), stored.isOver);
  return inside(app, actor, id, async (guest, { machine_id: machine }) => {
    const record = await ask(() => guest.getCommand(command));
    const now = record ? await seen(app, id, stored.row, record) : toCommand(known(stored.row), true);
    return withDenials(app, machine, now);
  });
}

/** One that was begun; undefined where its machine never got to hear of it. */
export async function findBegun(
  app: Needs,
  actor: Actor,
  id: string,
  command: string,
): Promise<Command | undefined> {
  const { row, isAlive, isOver } = await findStored(app, actor, id, command);
  if (row && !isAlive) return toCommand(row, isOver);
  return inside(app, actor, id, async (guest) => {
    const record = await ask(() => guest.getCommand(command));
    if (!record) return row && toCommand(row, true);
    if (!row) await saveCommands(app.db, [toRow(app, id, record)]);
    return seen(app, id, row, record);
  });
}

/** SIGTERM, then SIGKILL. Ending one that ended changes nothing and answers it as it is. */
export async function killCommand(app: Needs, actor: Actor, id: string, command: string): Promise<Command> {
  const stored = await findStored(app, actor, id, command);
  if (stored.isOver) return toCommand(known(stored.row), true);
  return inside(app, actor, id, async (guest, { machine_id: machine }) => {
    const record = await ask(() => guest.killCommand(command));
    if (!record) return toCommand(known(stored.row), true);
    const last = (await untilEnded(guest, command)) ?? record;
    return withDenials(app, machine, await seen(app, id, stored.row, last));
  });
}

export function writeInput(
  app: Needs,
  actor: Actor,
  id: string,
  command: string,
  input: CommandInput,
): Promise<{ bytes_written: number }> {
  const data = Buffer.from(input.data, "base64");
  return inside(app, actor, id, async (guest) => {
    // Asked first: the machine's "not running" below can then only mean the command.
    if (!isCommandId(command) || !(await ask(() => guest.getCommand(command)))) throw commandNotFound();
    await guest.writeCommandStdin(command, data, input.eof).catch((error: unknown) => {
      if (isKind(error, "not_running")) throw commandNotReading("ended");
      throw isKind(error, "timeout") ? commandNotReading("full") : error;
    });
    return { bytes_written: data.length };
  });
}

export async function list(
  app: Needs,
  actor: Actor,
  id: string,
  query: { cursor?: string | undefined; limit: number },
): Promise<{ items: Command[]; next_cursor: string | null }> {
  const { status, machine_id: machine } = await getSandbox(app, actor, id);
  const records = status === "running" ? await inside(app, actor, id, (guest) => allOf(guest)) : new Map();
  const current = Array.from(records.values(), (record) => toRow(app, id, record));
  await saveCommands(
    app.db,
    current.filter((row) => row.killed_by === null),
  );
  for (const row of current) if (row.killed_by !== null) await saveEnd(app, row);
  const place = `commands:${id}`;
  const rows = await listCommands(app.db, id, {
    before: query.cursor === undefined ? undefined : openCursor<Position>(app, actor, place, query.cursor),
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  const isNew = page.some((row) => row.status === "running" && !records.has(row.id));
  // One that was started since the machine was asked is not lost.
  const now = isNew && status === "running" ? await inside(app, actor, id, (guest) => allOf(guest)) : records;
  return {
    items: page.map((row) => {
      const record = now.get(row.id);
      const command = record
        ? toCommand(merge(row, toRow(app, id, record)))
        : toCommand(row, status !== "paused");
      return withDenials(app, machine, command);
    }),
    next_cursor:
      rows.length > query.limit && last
        ? sealCursor(app, actor, place, { startedAt: last.started_at_text, id: last.id })
        : null,
  };
}

interface Position {
  startedAt: string;
  id: string;
}

/** What the table knows, and whether the machine can be asked for more. */
async function findStored(
  app: Needs,
  actor: Actor,
  id: string,
  command: string,
): Promise<{ row: CommandRow | undefined; isAlive: boolean; isOver: boolean }> {
  const { status } = await getSandbox(app, actor, id);
  if (!isCommandId(command)) throw commandNotFound();
  const row = await findCommand(app.db, id, command);
  return { row, isAlive: status === "running", isOver: status === "terminated" };
}

function known(row: CommandRow | undefined): CommandRow {
  if (!row) throw commandNotFound();
  return row;
}

/** The command as its machine says it is now; an end is written down, so that it is known after the machine. */
export async function seen(
  app: Pick<App, "db" | "clock" | "log">,
  id: string,
  stored: CommandRow | undefined,
  record: CommandRecord,
): Promise<Command> {
  const row = merge(stored, toRow(app, id, record));
  if (row.ended_at !== null && !stored?.ended_at) await saveEnd(app, row);
  return toCommand(row);
}

/** Adds the hosts that the machine was denied while the command ran. */
function withDenials(
  app: Pick<App, "machines" | "clock">,
  machine: string | null,
  command: Command,
): Command {
  const from = new Date(command.started_at);
  const to = command.ended_at === null ? app.clock.now() : new Date(command.ended_at);
  return { ...command, ...deniedField(app.machines.denials.between(machine ?? "", from, to)) };
}

async function saveEnd(app: Pick<App, "db" | "clock" | "log">, row: CommandRow): Promise<void> {
  const isFirst = (await findCommand(app.db, row.sandbox_id, row.id))?.ended_at == null;
  await saveCommands(app.db, [row]);
  if (isFirst && row.killed_by !== null) await reportOutOfMemory(app, row.sandbox_id, row.id);
}

function merge(stored: CommandRow | undefined, now: CommandRow): CommandRow {
  if (!stored) return now;
  const { status, exit_code, killed_by, output_bytes } = now;
  return {
    ...stored,
    status,
    exit_code,
    killed_by,
    ended_at: notBefore(stored.started_at, now.ended_at),
    output_bytes,
  };
}

/** Corrects an end before the start: the end is of the machine's clock, the start of this server's. */
function notBefore(start: Date, end: Date | null): Date | null {
  return end !== null && end < start ? start : end;
}

async function allOf(guest: Guest): Promise<Map<string, CommandRecord>> {
  const records = await guest.listCommands();
  return new Map(records.filter(({ id }) => isCommandId(id)).map((record) => [record.id, record]));
}

/** The record once the command has ended, if that is soon. */
export async function untilEnded(guest: Guest, id: string): Promise<CommandRecord | undefined> {
  const end = guest.followCommand(id, Number.MAX_SAFE_INTEGER, AbortSignal.timeout(killedWithinMs));
  try {
    for (;;) {
      const step = await end.next();
      if (step.done) return step.value;
    }
  } catch {
    // Not yet: the caller gets what is known, and can poll.
    return undefined;
  }
}

/** Undefined where the machine does not know the command: it forgets all but the last hundred that ended. */
export async function ask<T>(call: () => Promise<T>): Promise<T | undefined> {
  try {
    return await call();
  } catch (error) {
    if (isKind(error, "not_found")) return undefined;
    throw error;
  }
}

export function isKind(error: unknown, kind: string): boolean {
  return (error as { kind?: string } | null)?.kind === kind;
}

/** Only these are a caller's: a machine may run commands of ours as well. */
export function isCommandId(id: string): boolean {
  return /^cmd_[a-z0-9]{1,40}$/.test(id);
}

/** What a machine says of itself, in bounds: no time to come, no text PostgreSQL could not hold. */
function toRow(app: Pick<App, "clock">, sandboxId: string, record: CommandRecord): CommandRow {
  const now = app.clock.now();
  const past = (at: Date): Date => (at > now ? now : at);
  const isRunning = record.status === "running";
  const exit = { code: record.exitCode, signal: record.signal, timedOut: record.timedOut };
  return {
    sandbox_id: sandboxId,
    id: record.id,
    command: record.text.replaceAll("\0", ""),
    tag: record.tag.replaceAll("\0", "") || null,
    pid: record.pid,
    status: record.status,
    exit_code: isRunning ? null : exitCode(exit),
    killed_by: isRunning ? null : killedBy({ ...exit, outOfMemory: record.outOfMemory }),
    started_at: past(record.startedAt),
    ended_at: isRunning ? null : past(record.endedAt ?? now),
    output_bytes: record.outputBytes,
  };
}
