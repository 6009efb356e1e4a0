/**
 * Terminals: a shell, or any program, that believes it talks to a person. A terminal is a background command that runs
 * on one: its machine runs it and keeps what it showed, so it outlives its viewers, this server and a pause. Nothing of
 * it is stored here; it ends with its machine. Any number of viewers, up to 16, see and type the same.
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

/** The shell is its user's, from the machine's /etc/passwd. */
const loginShell = 'exec "${SHELL:-/bin/sh}" -l';

/** `begins` is told the id before anything runs. */
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

/** One that was begun; undefined where its machine never got to hear of it, or has forgotten it. */
export function findBegun(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty | undefined> {
  return inside(app, actor, id, async (guest) => {
    const record = await ask(() => guest.getCommand(pty));
    return record && toPty(record);
  });
}

/** Newest first: those that run, and the last that ended. A sandbox is not woken to be asked. */
export async function listPtys(app: Needs, actor: Actor, id: string): Promise<{ items: Pty[] }> {
  refuseUnlessRunning(await getSandbox(app, actor, id));
  const records = await inside(app, actor, id, (guest) => guest.listCommands());
  return { items: records.filter((record) => isPtyId(record.id)).map(toPty) };
}

export async function getPty(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty> {
  refuseUnlessRunning(await getSandbox(app, actor, id));
  return inside(app, actor, id, async (guest) => toPty(await known(pty, () => guest.getCommand(pty))));
}

/** Hangs up: SIGHUP to all its programs, SIGKILL after 5 s. One that ended is answered as it is. */
export function killPty(app: Needs, actor: Actor, id: string, pty: string): Promise<Pty> {
  return inside(app, actor, id, async (guest) => {
    const record = await known(pty, () => guest.killCommand(pty));
    return toPty((await untilEnded(guest, pty)) ?? record);
  });
}

/** The machine's answer about a terminal of a caller's. */
export async function known(pty: string, call: () => Promise<CommandRecord>): Promise<CommandRecord> {
  const record = isPtyId(pty) ? await ask(call) : undefined;
  if (!record) throw ptyNotFound();
  return record;
}

function isPtyId(id: string): boolean {
  return /^pty_[a-z0-9]{1,40}$/.test(id);
}
