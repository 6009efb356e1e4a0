/**
 * Exec runs one command in a sandbox and waits for its end. A buffered command runs to its end even if the caller
 * disconnects; a streamed command ends with its reader. Output is pulled, so that a slow reader blocks the command and
 * not this server.
 */
import { constants } from "node:os";
import type { Guest, GuestProcess, ProcessExit, SpawnSpec } from "#machines/host/guest.ts";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { execFailed } from "#machines/errors.ts";
import { reportOutOfMemory } from "../sandboxes/machine-events/out-of-memory.ts";
import { processPlace } from "../sandboxes/lifecycle/process-defaults.ts";
import { explain, inside, type InsideNeeds, type SandboxRow } from "../sandboxes/sandboxes.ts";
import { type DeniedTargets, watchDenials } from "./egress-denials.ts";
import { Head } from "./head.ts";
import type { Exec, ExecFrame, ExecResult } from "./schema.ts";

type Needs = InsideNeeds;

/** Maximum of each stream in a buffered response; the rest is read and dropped. */
export const bufferedMaxBytes = 8 * 1024 ** 2;

export function runBuffered(app: Needs, actor: Actor, id: string, input: Exec): Promise<ExecResult> {
  return inside(app, actor, id, async (guest, row) => {
    using denied = watchDenials(app, row);
    const child = await start(guest, row, input, "run_on");
    const heads = { stdout: new Head(bufferedMaxBytes), stderr: new Head(bufferedMaxBytes) };
    for await (const { stream, data } of child.output) heads[stream].add(data);
    const exit = await child.exit;
    if (exit.outOfMemory) await reportOutOfMemory(app, id, "exec");
    return {
      stdout: heads.stdout.text(),
      stderr: heads.stderr.text(),
      exit_code: exitCode(exit),
      duration_ms: toMs(exit),
      timed_out: exit.timedOut,
      truncated: heads.stdout.truncated || heads.stderr.truncated,
      signal: exit.timedOut ? null : signalName(exit.signal),
      killed_by: killedBy(exit),
      ...denied.field(),
    };
  });
}

/**
 * Starts a command and streams its frames. An error before the first frame is thrown, and becomes an ordinary error
 * response.
 */
export async function startStreamed(
  app: Needs,
  actor: Actor,
  id: string,
  input: Exec,
): Promise<{ frames: AsyncIterable<ExecFrame>; stop: () => void }> {
  const { child, denied } = await inside(app, actor, id, async (guest, row) => {
    using undo = new DisposableStack();
    const watch = undo.use(watchDenials(app, row));
    const started = await start(guest, row, input, "kill");
    undo.move();
    return { child: started, denied: watch };
  });
  return {
    frames: framesOf(app, actor, id, child, denied),
    stop: () => (denied[Symbol.dispose](), child.close()),
  };
}

async function* framesOf(
  app: Needs,
  actor: Actor,
  id: string,
  child: GuestProcess,
  denied: DeniedTargets,
): AsyncIterable<ExecFrame> {
  yield { kind: "exec_started", pid: child.pid };
  try {
    for await (const { stream, data } of child.output) {
      yield { kind: "exec_chunk", stream, data: data.toString("base64") };
    }
    const exit = await child.exit;
    if (exit.outOfMemory) await reportOutOfMemory(app, id, "exec");
    yield { ...lastFrame(exit), ...denied.field() };
  } catch (error) {
    yield { ...errorFrame(await explain(app, actor, id, error)), ...denied.field() };
  } finally {
    denied[Symbol.dispose]();
    child.close();
  }
}

/** Returns the final frame of a stream that failed. */
export function errorFrame(explained: unknown): ExecFrame {
  const [code, message] =
    explained instanceof DomainError
      ? [explained.code, explained.detail]
      : ["internal_error", "The stream broke."];
  return { kind: "error", code, message, signal: null, duration_ms: null };
}

/** Returns the cause of a failure. A command that lost a process and still exited with 0 did not fail. */
export function killedBy(
  exit: Pick<ProcessExit, "code" | "timedOut" | "outOfMemory">,
): "out_of_memory" | null {
  return exit.outOfMemory && !exit.timedOut && exit.code !== 0 ? "out_of_memory" : null;
}

/** Returns the final frame of a stream, from the exit of its process. */
export function lastFrame(exit: ProcessExit): ExecFrame {
  const frame = endFrame(exit);
  return killedBy(exit) === null ? frame : { ...frame, killed_by: "out_of_memory" };
}

function endFrame(exit: ProcessExit): Extract<ExecFrame, { kind: "error" | "exec_exited" }> {
  const duration_ms = toMs(exit);
  const signal = signalName(exit.signal);
  if (exit.timedOut) {
    return {
      kind: "error",
      code: "exec_timeout",
      message: "The command exceeded its timeout.",
      signal,
      duration_ms,
    };
  }
  if (exit.signal !== null) {
    return {
      kind: "error",
      code: "killed_by_signal",
      message:
        killedBy(exit) === null
          ? `The command was killed by ${signal}.`
          : "The command was killed because the sandbox ran out of memory: use less memory, or a larger sandbox.",
      signal,
      duration_ms,
    };
  }
  return { kind: "exec_exited", code: exit.code ?? 0, duration_ms };
}

async function start(
  guest: Guest,
  row: SandboxRow,
  input: Exec,
  onDisconnect: SpawnSpec["onDisconnect"],
): Promise<GuestProcess> {
  const spec: SpawnSpec = {
    ...(input.args ? { argv: input.args } : { shell: input.command ?? "" }),
    ...processPlace(row, input),
    ...(input.env === undefined ? {} : { env: input.env }),
    timeoutMs: input.timeout_seconds * 1000,
    onDisconnect,
  };
  const child = await guest.spawn(spec).catch(blameDirectory);
  feed(child, input.stdin);
  return child;
}

/**
 * Rethrows the error of a start. The only path of a start is its working directory, so a missing path is an invalid
 * request and not a 404.
 */
export function blameDirectory(error: unknown): never {
  throw isAboutPath(error) ? execFailed(`cwd: ${error.message}`) : error;
}

function isAboutPath(error: unknown): error is Error {
  const kind = (error as { kind?: string } | null)?.kind;
  return kind !== undefined && pathKinds.has(kind);
}

const pathKinds = new Set(["path_not_found", "not_directory", "not_permitted", "invalid_path"]);

/**
 * Writes the whole input, and then closes it. The caller does not await this, because a command that never reads must
 * not hold its own output back.
 */
function feed(child: GuestProcess, stdin: string | undefined): void {
  const written = stdin === undefined ? Promise.resolve() : child.writeStdin(Buffer.from(stdin, "base64"));
  // A command that ended or closed its input early is not an error.
  written.catch(() => {}).finally(() => child.endStdin());
}

const signalNames = new Map(Object.entries(constants.signals).map(([name, number]) => [number, name]));

export function signalName(signal: number | null): string | null {
  return signal === null ? null : (signalNames.get(signal as never) ?? `SIG${signal}`);
}

/** Returns the exit code as in a shell: 124 for a timeout, 128 + n for signal n. */
export function exitCode(exit: Pick<ProcessExit, "code" | "signal" | "timedOut">): number {
  if (exit.timedOut) return 124;
  return exit.signal === null ? (exit.code ?? 0) : 128 + exit.signal;
}

function toMs(exit: ProcessExit): number {
  return Math.round(exit.durationUs / 1000);
}
