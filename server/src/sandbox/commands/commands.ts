/**
 * Background commands run independently of requests. The machine is the source of truth: it runs a command and keeps
 * its output, also across a restart of this server. The table records that a command existed, and its end if a server
 * observed the end. So both are known after the machine is gone. A command that was returned to a caller can be read as
 * long as its sandbox's record exists. If its end is unknown, its status is `lost`.
 */
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { newId } from "#lib/ids.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { deniedField } from "../exec/egress-denials.ts";
import { blameDirectory, exitCode, killedBy } from "../exec/exec.ts";
import { reportOutOfMemory } from "../sandboxes/machine-events/out-of-memory.ts";
import { processPlace } from "../sandboxes/lifecycle/process-defaults.ts";
import { getSandbox, inside } from "../sandboxes/sandboxes.ts";
import { commandNotFound, commandNotReading } from "./errors.ts";
import { type Command, type CommandInput, type CommandStart, toCommand } from "./schema.ts";
import { type CommandRow, findCommand, listCommands, saveCommands } from "./store.ts";

export type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/**
 * Most commands end within this time after SIGTERM. A delete then returns the outcome, and does not wait for slower
 * commands.
 */
const killedWithinMs = 500;

/** Starts a background command. `begins` receives the id before the command runs. */
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
    // The time is read before the start, because the end that the guest reports must not be earlier.
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

/** Inserts the row of a command that its machine has just started. */
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
  if (!stored.isAlive) return toCommand(requireCommand(stored.row), stored.isOver);
  return inside(app, actor, id, async (guest, { machine_id: machine }) => {
    const record = await ask(() => guest.getCommand(command));
    const now = record
      ? await currentState(app, id, stored.row, record)
      : toCommand(requireCommand(stored.row), true);
    return withDenials(app, machine, now);
  });
}

/** Finds a command whose start began; undefined if the machine never received the request. */
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
    return currentState(app, id, row, record);
  });
}

/** Sends SIGTERM, then SIGKILL. A command that has already ended is returned unchanged. */
export async function killCommand(app: Needs, actor: Actor, id: string, command: string): Promise<Command> {
  const stored = await findStored(app, actor, id, command);
  if (stored.isOver) return toCommand(requireCommand(stored.row), true);
  return inside(app, actor, id, async (guest, { machine_id: machine }) => {
    const record = await ask(() => guest.killCommand(command));
    if (!record) return toCommand(requireCommand(stored.row), true);
    const last = (await untilEnded(guest, command)) ?? record;
    return withDenials(app, machine, await currentState(app, id, stored.row, last));
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
    // The command is read first, so that "not running" below can only refer to the command and not to the machine.
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
  // A command that started after the machine's list was read is not lost.
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

/** Reads the stored record, and whether the machine can report a newer state. */
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

function requireCommand(row: CommandRow | undefined): CommandRow {
  if (!row) throw commandNotFound();
  return row;
}

/**
 * The current state of the command in its machine. An end is stored, so that it is known after the machine.
 */
export async function currentState(
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

/** Corrects an end before the start: the end comes from the machine's clock, the start from this server's. */
function notBefore(start: Date, end: Date | null): Date | null {
  return end !== null && end < start ? start : end;
}

async function allOf(guest: Guest): Promise<Map<string, CommandRecord>> {
  const records = await guest.listCommands();
  return new Map(records.filter(({ id }) => isCommandId(id)).map((record) => [record.id, record]));
}

/** Waits briefly for the end of the command, and returns its record then. */
export async function untilEnded(guest: Guest, id: string): Promise<CommandRecord | undefined> {
  const end = guest.followCommand(id, Number.MAX_SAFE_INTEGER, AbortSignal.timeout(killedWithinMs));
  try {
    for (;;) {
      const step = await end.next();
      if (step.done) return step.value;
    }
  } catch {
    // The command still runs; the caller gets its current state and can poll.
    return undefined;
  }
}

/**
 * Runs a call for a command. Undefined if the machine does not know the command: it keeps only the last hundred
 * finished commands.
 */
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

/** True for the id of a caller's command. A machine may also run commands of the server, which have other ids. */
export function isCommandId(id: string): boolean {
  return /^cmd_[a-z0-9]{1,40}$/.test(id);
}

/**
 * Converts a record of the machine into a row within bounds: no future time, and no text that PostgreSQL cannot store.
 */
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
