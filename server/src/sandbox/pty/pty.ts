/**
 * Terminals: a shell, or any program, on a pseudo-terminal. A terminal is a background command. The machine runs it and
 * keeps its output, so it outlives its viewers, this server and a pause. The server stores nothing, and a terminal ends
 * with its machine. Up to 16 viewers share the same screen and keyboard.
 */
import type { CommandRecord } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import { newId } from "#lib/ids.ts";
import { ask, untilEnded } from "../commands/commands.ts";
import { blameDirectory } from "../exec/exec.ts";
import { processPlace } from "../sandboxes/lifecycle/process-defaults.ts";
import { getSandbox, inside, type InsideNeeds, refuseUnlessRunning } from "../sandboxes/sandboxes.ts";
import { ptyNotFound } from "./errors.ts";
import { type Pty, type PtyStart, toPty } from "./schema.ts";

type Needs = InsideNeeds;

/** The login shell of the user, from the machine's /etc/passwd. */
const loginShell = 'exec "${SHELL:-/bin/sh}" -l';

/** Starts a terminal. `begins` receives the id before the program runs. */
export function startPty(
  app: Needs,
  actor: Actor,
  id: string,
  { command, cwd, user, env, cols, rows }: PtyStart,
  begins: (pty: string) => Promise<void> = async () => {},
): Promise<Pty> {
  return inside(app, actor, id, async (guest, sandbox) => {
    const pty = newId("pty_");
    await begins(pty);
    await guest
      .startCommand({
        id: pty,
        shell: command ?? loginShell,
        env: { TERM: "xterm-256color", ...env },
        terminal: { cols, rows },
        ...processPlace(sandbox, { cwd, user }),
      })
      .catch(blameDirectory);
    return toPty(await guest.getCommand(pty));
  });
}

/**
 * Finds a terminal whose start began; undefined if the machine never received the request, or has forgotten the
 * terminal.
 */
export function findBegun(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty | undefined> {
  return inside(app, actor, id, async (guest) => {
    const record = await ask(() => guest.getCommand(pty));
    return record && toPty(record);
  });
}

/** Lists the running terminals and those that ended last, newest first. Listing does not wake a sandbox. */
export async function listPtys(app: Needs, actor: Actor, id: string): Promise<{ items: Pty[] }> {
  refuseUnlessRunning(await getSandbox(app, actor, id));
  const records = await inside(app, actor, id, (guest) => guest.listCommands());
  return { items: records.filter((record) => isPtyId(record.id)).map(toPty) };
}

export async function getPty(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty> {
  refuseUnlessRunning(await getSandbox(app, actor, id));
  return inside(app, actor, id, async (guest) => toPty(await requirePty(pty, () => guest.getCommand(pty))));
}

/**
 * Hangs up a terminal: SIGHUP to all its programs, SIGKILL after 5 s. A terminal that has already ended is returned
 * unchanged.
 */
export function killPty(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty> {
  return inside(app, actor, id, async (guest) => {
    const record = await requirePty(pty, () => guest.killCommand(pty));
    return toPty((await untilEnded(guest, pty)) ?? record);
  });
}

/** Reads a caller's terminal from the machine. */
export async function requirePty(pty: string, call: () => Promise<CommandRecord>): Promise<CommandRecord> {
  const record = isPtyId(pty) ? await ask(call) : undefined;
  if (!record) throw ptyNotFound();
  return record;
}

function isPtyId(id: string): boolean {
  return /^pty_[a-z0-9]{1,40}$/.test(id);
}
