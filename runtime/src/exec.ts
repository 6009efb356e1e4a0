/**
 * The only way to start child processes: `run`, or `start` for streams too large for memory. Both functions take an
 * argv array, never a shell, and have a deadline and bounded output. Both functions fail with one kind of error, which
 * has the program, its exit and its last lines.
 */
import { type ChildProcess, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { RuntimeError } from "./driver.ts";

/**
 * Default limit of output: enough for `ip -json` and `nft -j` listings of thousands of objects. Further output is cut.
 */
const DEFAULT_MAX_OUTPUT_BYTES = 8 * 1024 * 1024;
const DEFAULT_TIMEOUT_MS = 30_000;
const LAST_LINES = 8;

export interface RunOptions {
  /** Text or bytes for stdin. Default: /dev/null. */
  stdin?: string | Uint8Array;
  /** Age at which the child gets SIGKILL, and `run` fails with `timeout`. Default 30 s. */
  timeoutMs?: number;
  /** Kills the process after this time without output. By default only `timeoutMs` counts. */
  quietMs?: number;
  cwd?: string;
  /** The whole environment of the child. Default: that of this process. */
  env?: NodeJS.ProcessEnv;
  /** Limit for each of stdout and stderr; further output is read and dropped. Default 8 MiB. */
  maxOutputBytes?: number;
  /** Exit codes of success. Default only 0. */
  okCodes?: readonly number[];
  /** Called with each piece of stdout and stderr, for progress. */
  onOutput?: (text: string, stream: "stdout" | "stderr") => void;
  /** Aborting the signal ends the child with SIGKILL, and `run` fails with `failed`. */
  signal?: AbortSignal;
  /**
   * The child leads a process group, and the whole group is killed with it: for programs that start other
   * processes.
   */
  group?: boolean;
}

export interface RunResult {
  code: number;
  stdout: string;
  stderr: string;
}

/**
 * Runs a program to its end. Fails with `timeout` at its deadline, with `host_unsupported` if the program is not
 * installed, otherwise with `failed`. `details` contain `argv0`, `code`, `signal` and `stderr` (its last lines).
 */
export async function run(argv: readonly string[], options: RunOptions = {}): Promise<RunResult> {
  const [program, ...args] = argv;
  if (program === undefined)
    throw new RuntimeError("failed", "argv is empty; pass the program and its arguments");
  const maxBytes = options.maxOutputBytes ?? DEFAULT_MAX_OUTPUT_BYTES;
  const timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  const child = spawn(program, args, {
    stdio: [options.stdin === undefined ? "ignore" : "pipe", "pipe", "pipe"],
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...(options.env === undefined ? {} : { env: options.env }),
    detached: options.group === true,
  });
  const stdout = new BoundedText(maxBytes);
  const stderr = new BoundedText(maxBytes);
  child.stdout?.on("data", (piece: Buffer) => {
    quiet?.refresh();
    stdout.add(piece);
    options.onOutput?.(piece.toString(), "stdout");
  });
  child.stderr?.on("data", (piece: Buffer) => {
    quiet?.refresh();
    stderr.add(piece);
    options.onOutput?.(piece.toString(), "stderr");
  });
  // EPIPE is ignored: the exit code decides about a program that ends without reading its stdin.
  child.stdin?.on("error", () => {});
  child.stdin?.end(options.stdin);

  let ended: "timeout" | "quiet" | "aborted" | undefined;
  const kill = (why: "timeout" | "quiet" | "aborted") => {
    ended ??= why;
    if (options.group === true) killGroup(child, "SIGKILL");
    else child.kill("SIGKILL");
    // A grandchild may keep the pipes open after the child's end. "close" would then never arrive.
    child.stdout?.destroy();
    child.stderr?.destroy();
  };
  const deadline = setTimeout(() => kill("timeout"), timeoutMs);
  const quiet = options.quietMs === undefined ? undefined : setTimeout(() => kill("quiet"), options.quietMs);
  const onAbort = () => kill("aborted");
  options.signal?.addEventListener("abort", onAbort, { once: true });
  if (options.signal?.aborted === true) onAbort();

  try {
    const { code, signal } = await new Promise<{ code: number | null; signal: string | null }>(
      (resolve, reject) => {
        child.once("error", reject);
        child.once("close", (code, signal) => resolve({ code, signal }));
      },
    );
    if (ended === undefined && code !== null && (options.okCodes ?? [0]).includes(code)) {
      return { code, stdout: stdout.text(), stderr: stderr.text() };
    }
    const lastWords = lastLines(stderr.text());
    const isLate = ended === "timeout" || ended === "quiet";
    const limitMs = ended === "quiet" ? (options.quietMs ?? timeoutMs) : timeoutMs;
    throw new RuntimeError(
      isLate ? "timeout" : "failed",
      `${program} ${outcome(ended, code, signal, limitMs)}${lastWords === "" ? "" : `: ${lastWords}`}`,
      { details: { argv0: program, code, signal, stderr: lastWords } },
    );
  } catch (error) {
    if (error instanceof RuntimeError) throw error;
    const missing = (error as NodeJS.ErrnoException).code === "ENOENT" && options.cwd === undefined;
    throw new RuntimeError(
      missing ? "host_unsupported" : "failed",
      missing ? `${program} is not installed` : `${program} could not be started`,
      { cause: error, details: { argv0: program } },
    );
  } finally {
    clearTimeout(deadline);
    clearTimeout(quiet);
    options.signal?.removeEventListener("abort", onAbort);
  }
}

export interface StartOptions {
  env: NodeJS.ProcessEnv;
  cwd: string;
  /** Age of the program at which `end` is called. */
  timeoutMs: number;
}

/**
 * A running program, the leader of its own process group. The caller reads one stream and writes the other.
 */
export interface RunningProgram {
  stdin: Writable;
  stdout: Readable;
  /** Sends SIGTERM to the group, so that it can clean up, and SIGKILL two seconds later. */
  end(): void;
  /** Resolves after any exit, once stdout is closed. Rejects if the program could not start. */
  ended: Promise<{ code: number | null; signal: string | null; isLate: boolean; stderr: string }>;
}

/** Time for cleanup of a program between SIGTERM and SIGKILL. */
const TIDY_MS = 2_000;
const STDERR_MAX_BYTES = 64 * 1024;

/** Starts a program whose input and output are streams. */
export function start(argv: readonly string[], options: StartOptions): RunningProgram {
  const [program = "", ...args] = argv;
  const child = spawn(program, args, {
    stdio: ["pipe", "pipe", "pipe"],
    env: options.env,
    cwd: options.cwd,
    detached: true,
  });
  const stderr = new BoundedText(STDERR_MAX_BYTES);
  child.stderr.on("data", (piece: Buffer) => stderr.add(piece));
  // Write errors are ignored: the reader of stdout, and the exit, show whether the program failed.
  child.stdin.on("error", () => {});
  let isLate = false;
  let killing: NodeJS.Timeout | undefined;
  const end = () => {
    if (killing !== undefined || child.exitCode !== null || child.signalCode !== null) return;
    killGroup(child, "SIGTERM");
    killing = setTimeout(() => {
      killGroup(child, "SIGKILL");
      child.stdout.destroy();
      child.stderr.destroy();
    }, TIDY_MS);
  };
  const deadline = setTimeout(() => {
    isLate = true;
    end();
  }, options.timeoutMs);
  const ended = new Promise<Awaited<RunningProgram["ended"]>>((resolve, reject) => {
    child.once("error", (cause) =>
      reject(
        new RuntimeError("failed", `${program} could not be started`, { cause, details: { argv0: program } }),
      ),
    );
    child.once("close", (code, signal) => resolve({ code, signal, isLate, stderr: stderr.text() }));
  }).finally(() => {
    clearTimeout(deadline);
    clearTimeout(killing);
  });
  return { stdin: child.stdin, stdout: child.stdout, end, ended };
}

function killGroup({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, signal);
  } catch {
    // The program has ended already.
  }
}

function outcome(ended: string | undefined, code: number | null, signal: string | null, timeoutMs: number) {
  if (ended === "timeout") return `did not end within ${timeoutMs} ms`;
  if (ended === "quiet") return `printed nothing for ${timeoutMs} ms`;
  if (ended === "aborted") return "was aborted";
  return signal === null ? `exited with ${code}` : `was killed by ${signal}`;
}

function lastLines(text: string): string {
  return text.trim().split("\n").slice(-LAST_LINES).join("\n");
}

/** Keeps the beginning of a text up to a limit. Beyond the limit, keeps the end, because an error message comes last. */
class BoundedText {
  readonly #maxBytes: number;
  #head: Buffer[] = [];
  #headBytes = 0;
  #tail: Buffer = Buffer.alloc(0);

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  add(piece: Buffer): void {
    const room = this.#maxBytes - this.#headBytes;
    const head = piece.subarray(0, room);
    if (head.length > 0) {
      this.#head.push(head);
      this.#headBytes += head.length;
    }
    if (piece.length > room) {
      this.#tail = Buffer.concat([this.#tail, piece.subarray(room)]).subarray(-4096);
    }
  }

  text(): string {
    return Buffer.concat([...this.#head, this.#tail]).toString();
  }
}
