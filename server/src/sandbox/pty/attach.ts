/**
 * Connects a viewer to a terminal: output goes to the viewer and keys go to the terminal, until either ends.
 */
import type { Guest } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { isKind } from "../commands/commands.ts";
import {
  explain,
  getSandbox,
  inside,
  type InsideNeeds,
  refuseUnlessRunning,
} from "../sandboxes/sandboxes.ts";
import { badMessage, tooManyViewers } from "./errors.ts";
import { requirePty } from "./pty.ts";
import { exitMessage, type PtyAttach, type PtyMessage, PtyRequest } from "./schema.ts";

/** A viewer's connection. */
export interface Viewer {
  readonly signal: AbortSignal;
  readonly messages: AsyncIterable<Buffer | string>;
  send(message: Buffer | PtyMessage): Promise<void>;
  close(code: number, reason?: string): void;
}

const normal = 1000;
/**
 * Base of close codes: a close code is this number plus the HTTP status of the error. RFC 6455 leaves 4000–4999 to
 * applications.
 */
const errorBase = 4000;

/** Connects a viewer to a terminal. Errors before the connection are thrown; later errors are sent to the viewer. */
export async function attachPty(
  app: InsideNeeds,
  actor: Actor,
  id: string,
  pty: string,
  { offset, scrollback, cols, rows }: PtyAttach,
): Promise<(viewer: Viewer) => Promise<void>> {
  const record = await inside(app, actor, id, async (guest) => {
    const found = await requirePty(pty, () => guest.getCommand(pty));
    if (cols !== undefined && rows !== undefined && found.status === "running")
      await resize(guest, pty, { cols, rows });
    return found;
  });
  const wanted = Math.min(offset ?? record.outputBytes - scrollback, record.outputBytes);
  const at = Math.max(wanted, record.droppedBytes);
  return async (viewer) => {
    await viewer.send({ kind: "started", id: pty, pid: record.pid, offset: at });
    try {
      const row = await getSandbox(app, actor, id);
      refuseUnlessRunning(row);
      const guest = app.machines.connect(row.machine_id ?? "");
      await Promise.all([show(guest, pty, at, viewer), take(guest, pty, viewer)]);
    } catch (error) {
      if (viewer.signal.aborted) return;
      const explained = isKind(error, "no_capacity")
        ? tooManyViewers()
        : await explain(app, actor, id, error);
      const { status, code, detail } =
        explained instanceof DomainError
          ? explained
          : { status: 500, code: "internal_error", detail: "The connection to the terminal broke." };
      await viewer.send({ kind: "error", code, detail });
      viewer.close(errorBase + status, code);
    }
  };
}

/**
 * A slow viewer blocks this loop, the loop blocks the machine's connection, and that finally blocks the program.
 */
async function show(guest: Guest, pty: string, from: number, viewer: Viewer): Promise<void> {
  const output = guest.followCommand(pty, from, viewer.signal);
  for (let at = from; ;) {
    const step = await output.next();
    if (step.done) {
      await viewer.send(exitMessage(step.value));
      return viewer.close(normal, "the program ended");
    }
    const { offset, data } = step.value;
    if (offset > at) await viewer.send({ kind: "skipped", bytes: offset - at });
    await viewer.send(data);
    at = offset + data.length;
  }
}

async function take(guest: Guest, pty: string, viewer: Viewer): Promise<void> {
  for await (const message of viewer.messages) {
    if (typeof message === "string") await resize(guest, pty, parseRequest(message));
    else await type(guest, pty, message);
  }
}

/**
 * Passes keys to the program. Drops the keys if the program has ended, or has read nothing for half a minute, like a
 * terminal with a full buffer.
 */
async function type(guest: Guest, pty: string, keys: Buffer): Promise<void> {
  await guest.writeCommandStdin(pty, keys, false).catch(unlessKind("not_running", "timeout"));
}

async function resize(guest: Guest, pty: string, size: { cols: number; rows: number }): Promise<void> {
  await guest.resizeCommand(pty, size).catch(unlessKind("not_running"));
}

function unlessKind(...kinds: string[]): (error: unknown) => void {
  return (error) => {
    if (!kinds.some((kind) => isKind(error, kind))) throw error;
  };
}

function parseRequest(message: string): { cols: number; rows: number } {
  try {
    return PtyRequest.parse(JSON.parse(message));
  } catch {
    throw badMessage();
  }
}
