/** Output of a command: a part of it by offset, or a stream of it. */
import type { CommandRecord } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { DomainError } from "#lib/errors.ts";
import { errorFrame, lastFrame } from "../exec/exec.ts";
import { explain, getSandbox, inside, refuseUnlessRunning } from "../sandboxes/sandboxes.ts";
import { ask, isCommandId, isKind, type Needs, currentState } from "./commands.ts";
import { commandNotFound, outputForgotten, tooManyReaders } from "./errors.ts";
import type { CommandLogs, LogEvent } from "./schema.ts";
import { findCommand } from "./store.ts";

export function readLogs(
  app: Needs,
  actor: Actor,
  id: string,
  command: string,
  { offset, limit }: { offset: number; limit: number },
): Promise<CommandLogs> {
  return inside(app, actor, id, async (guest) => {
    const logs = isCommandId(command)
      ? await ask(() => guest.commandLogs(command, offset, limit))
      : undefined;
    if (!logs) throw await whyNoOutput(app, id, command);
    return {
      chunks: logs.chunks.map(({ stream, offset: at, data }) => ({
        stream,
        offset: at,
        data: data.toString("base64"),
      })),
      next_offset: logs.nextOffset,
      dropped_bytes: logs.command.droppedBytes,
    };
  });
}

/**
 * Streams the frames of exec for a background command: its output from `offset` on, new output, then its end. An
 * event's id is the offset after that event, so that a returning reader misses nothing and gets nothing twice. An error
 * before the first frame is thrown.
 */
export async function followLogs(
  app: Needs,
  actor: Actor,
  id: string,
  command: string,
  offset: number,
): Promise<(signal: AbortSignal) => AsyncIterable<LogEvent>> {
  const record = await inside(app, actor, id, async (guest) => {
    const found = isCommandId(command) ? await ask(() => guest.getCommand(command)) : undefined;
    if (!found) throw await whyNoOutput(app, id, command);
    return found;
  });
  return (signal) => events(app, actor, id, { record, offset, signal });
}

async function* events(
  app: Needs,
  actor: Actor,
  id: string,
  { record, offset, signal }: { record: CommandRecord; offset: number; signal: AbortSignal },
): AsyncIterable<LogEvent> {
  let at = offset;
  yield { id: at, data: { kind: "exec_started", pid: record.pid } };
  try {
    const row = await getSandbox(app, actor, id);
    refuseUnlessRunning(row);
    const guest = app.machines.connect(row.machine_id ?? "");
    let output = guest.followCommand(record.id, at, signal);
    for (;;) {
      const step = await output.next().catch((error: unknown) => {
        if (!isKind(error, "interrupted")) throw error;
      });
      // After a snapshot, the command continues, and the reader continues at its last offset.
      if (!step) {
        output = guest.followCommand(record.id, at, signal);
        continue;
      }
      if (step.done) {
        await currentState(app, id, undefined, step.value);
        yield { id: at, data: lastFrame(exitOf(step.value)) };
        return;
      }
      const { stream, data } = step.value;
      at = step.value.offset + data.length;
      yield { id: at, data: { kind: "exec_chunk", stream, data: data.toString("base64") } };
    }
  } catch (error) {
    if (signal.aborted) return;
    const explained = isKind(error, "no_capacity") ? tooManyReaders() : await explain(app, actor, id, error);
    yield { id: at, data: errorFrame(explained) };
  }
}

/** Returns the end of a command as the exit of a process. */
export function exitOf({ exitCode, signal, timedOut, outOfMemory, startedAt, endedAt }: CommandRecord) {
  const durationMs = (endedAt?.getTime() ?? startedAt.getTime()) - startedAt.getTime();
  return { code: exitCode, signal, timedOut, outOfMemory, durationUs: Math.max(0, durationMs) * 1000 };
}

async function whyNoOutput(app: Pick<App, "db">, id: string, command: string): Promise<DomainError> {
  return (await findCommand(app.db, id, command)) ? outputForgotten() : commandNotFound();
}
