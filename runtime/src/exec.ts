/**
 * The one door to child processes. Every program goes through `run`, or through `start` where what it reads and writes
 * is too much to be held: an argv array, never a shell; a deadline; bounded output; and one kind of error that says
 * which program failed, how, and its last words.
 */
import { type ChildProcess, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { RuntimeError } from "./driver.ts";

/** Enough for `ip -json` and `nft -j` listings of thousands of objects; what a program prints beyond is cut. */
const DEFAULT_MAX_OUTPUT_BYTES = 8 * 1024 * 1024;
const DEFAULT_TIMEOUT_MS = 30_000;
const LAST_LINES = 8;

export interface RunOptions {
  /** Text or bytes for stdin; without it stdin is /dev/null. */
  stdin?: string | Uint8Array;
  /** The child gets SIGKILL at this age and `run` fails with `timeout`. Default 30 s. */
  timeoutMs?: number;
  /** Kills the process after this time without output. By default only `timeoutMs` counts. */
  quietMs?: number;
  cwd?: string;
  /** The whole environment of the child; that of this process where absent. */
  env?: NodeJS.ProcessEnv;
  /** Each of stdout and stderr is kept up to this size; the rest is read and dropped. Default 8 MiB. */
  maxOutputBytes?: number;
  /** Exit codes that are no failure. Default only 0. */
  okCodes?: readonly number[];
  /** Called with each piece of stdout and stderr as it comes, for progress. */
  onOutput?: (text: string, stream: "stdout" | "stderr") => void;
  /** Ends the child with SIGKILL and fails `run` with `failed`. */
  signal?: AbortSignal;
  /** The child leads a process group, and the whole group is killed with it: for programs that start others. */
  group?: boolean;
}

export interface RunResult {
  code: number;
  stdout: string;
  stderr: string;
}

/**
 * Runs a program to its end. Fails with `timeout` at its deadline, `host_unsupported` where the program is not
 * installed, else `failed`; `details` hold `argv0`, `code`, `signal` and `stderr` (its last lines).
 */
export async function run(argv: readonly string[], options: RunOptions = {}): Promise<RunResult> {
  const [program, ...args] = argv;
  if (program === undefined) throw new RuntimeError("failed", "run() was given an empty argv");
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
  // A program that ends without reading its stdin is judged by its exit code, not by our EPIPE.
  child.stdin?.on("error", () => {});
  child.stdin?.end(options.stdin);

  let ended: "timeout" | "quiet" | "aborted" | undefined;
  const kill = (why: "timeout" | "quiet" | "aborted") => {
    ended ??= why;
    if (options.group === true) killGroup(child, "SIGKILL");
    else child.kill("SIGKILL");
    // A grandchild may hold our pipes after the child is gone: let go of them, or "close" never comes.
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
  /** At this age the child is ended as by `end`. */
  timeoutMs: number;
}

/** A program under way, the leader of a process group of its own. Both streams are the caller's to read and to end. */
export interface Started {
  stdin: Writable;
  stdout: Readable;
  /** SIGTERM to its group, so that it tidies up, and SIGKILL two seconds later. */
  end(): void;
  /** Resolves when it is gone and its stdout is closed, however it went; rejects where it could not be started. */
  ended: Promise<{ code: number | null; signal: string | null; isLate: boolean; stderr: string }>;
}

/** How long a program may tidy up once it was asked to end. */
const TIDY_MS = 2_000;
const STDERR_MAX_BYTES = 64 * 1024;

/** Starts a program whose input and output are streams. */
export function start(argv: readonly string[], options: StartOptions): Started {
  const [program = "", ...args] = argv;
  const child = spawn(program, args, {
    stdio: ["pipe", "pipe", "pipe"],
    env: options.env,
    cwd: options.cwd,
    detached: true,
  });
  const stderr = new BoundedText(STDERR_MAX_BYTES);
  child.stderr.on("data", (piece: Buffer) => stderr.add(piece));
  // Who reads its input, and how it ended, says whether that failed.
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
  const ended = new Promise<Awaited<Started["ended"]>>((resolve, reject) => {
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
    // It is gone already.
  }
}

function outcome(ended: string | undefined, code: number | null, signal: string | null, timeoutMs: number) {
  if (ended === "timeout") return `did not end within ${timeoutMs} ms`;
  if (ended === "quiet") return `printed nothing for ${timeoutMs} ms`;
  if (ended === "aborted") return "was stopped";
  return signal === null ? `exited with ${code}` : `was killed by ${signal}`;
}

function lastLines(text: string): string {
  return text.trim().split("\n").slice(-LAST_LINES).join("\n");
}

/** Keeps the beginning up to a limit, and the end beyond it: an error message stands at the end. */
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
