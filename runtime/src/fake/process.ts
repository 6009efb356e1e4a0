/** A process of a fake machine: an ordinary process of the host in its own process group. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import { join } from "node:path";
import type { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import {
  RuntimeError,
  type GuestProcess,
  type OutputChunk,
  type ProcessExit,
  type TerminalSize,
} from "../driver.ts";

/** Time to read the rest of the pipes after the leader's end, even if a background child keeps the pipes open. */
const DRAIN_MS = 20;

/** Python program that makes a terminal, because Node cannot make one. */
const terminalProgram = join(import.meta.dirname, "terminal.py");

export interface FakeProcessSpec {
  argv: [string, ...string[]];
  cwd: string;
  env: Record<string, string>;
  uid?: number;
  gid?: number;
  timeoutMs?: number;
  onDisconnect: "kill" | "run_on";
  terminal?: TerminalSize;
}

export class FakeProcess implements GuestProcess {
  readonly pid: number;
  readonly output: AsyncIterable<OutputChunk>;
  readonly exit: Promise<ProcessExit>;
  /** Resolves when the leader of the process group has ended, even if its output is unread. */
  readonly ended: Promise<void>;
  readonly #child: ChildProcess;
  readonly #onDisconnect: "kill" | "run_on";
  #timedOut = false;
  #machineDied = false;
  #outputRead: () => void = () => {};

  private constructor(child: ChildProcess, spec: FakeProcessSpec) {
    const began = process.hrtime.bigint();
    this.#child = child;
    this.#onDisconnect = spec.onDisconnect;
    this.pid = child.pid ?? 0;
    const left = new Promise<ProcessExit>((resolve) => {
      child.once("exit", (code, signal) =>
        resolve({
          code,
          signal: signal === null ? null : constants.signals[signal],
          timedOut: this.#timedOut,
          outOfMemory: false,
          durationUs: Number((process.hrtime.bigint() - began) / 1000n),
        }),
      );
    });
    this.ended = left.then(() => {});
    const read = new Promise<void>((resolve) => (this.#outputRead = resolve));
    this.exit = Promise.all([left, read]).then(([exit]) => {
      if (this.#machineDied) throw new RuntimeError("machine_died", "the machine ended");
      return exit;
    });
    this.exit.catch(() => {});
    this.output = this.#chunks();
    child.stdin?.on("error", () => {});
    child.stdio[3]?.on("error", () => {});
    if (spec.timeoutMs !== undefined) {
      const timer = setTimeout(() => {
        this.#timedOut = true;
        this.signal(constants.signals.SIGKILL);
      }, spec.timeoutMs);
      void this.ended.then(() => clearTimeout(timer));
    }
  }

  static async start(spec: FakeProcessSpec): Promise<FakeProcess> {
    const { terminal } = spec;
    const [program, ...args]: [string, ...string[]] = terminal
      ? ["python3", terminalProgram, `${terminal.cols}`, `${terminal.rows}`, ...spec.argv]
      : spec.argv;
    const child = spawn(program, args, {
      cwd: spec.cwd,
      env: spec.env,
      detached: true,
      stdio: ["pipe", "pipe", "pipe", ...(terminal ? (["pipe"] as const) : [])],
      ...(spec.uid === undefined ? {} : { uid: spec.uid }),
      ...(spec.gid === undefined ? {} : { gid: spec.gid }),
    });
    const running = new FakeProcess(child, spec);
    try {
      await once(child, "spawn");
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new RuntimeError(
        code === "EAGAIN" ? "too_many_processes" : "exec_failed",
        `${program} could not be started: ${code}`,
        { cause: error },
      );
    }
    return running;
  }

  async writeStdin(data: Buffer): Promise<void> {
    const { stdin } = this.#child;
    if (stdin === null || !stdin.writable)
      throw new RuntimeError("not_running", "the process accepts no more input");
    if (!stdin.write(data)) await Promise.race([once(stdin, "drain"), once(stdin, "close"), this.ended]);
  }

  endStdin(): void {
    this.#child.stdin?.end();
  }

  resize({ cols, rows }: TerminalSize): void {
    const size = Buffer.alloc(4);
    size.writeUInt16LE(cols, 0);
    size.writeUInt16LE(rows, 2);
    (this.#child.stdio[3] as Writable).write(size);
  }

  signal(signal: number): void {
    try {
      process.kill(-this.pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
  }

  close(): void {
    if (this.#onDisconnect === "kill") this.signal(constants.signals.SIGKILL);
    this.#child.stdout?.resume();
    this.#child.stderr?.resume();
    this.#outputRead();
  }

  /** Ends the process because its machine ends. */
  machineEnds(): void {
    this.#machineDied = true;
    this.signal(constants.signals.SIGKILL);
    this.signal(constants.signals.SIGCONT);
    this.#child.stdout?.destroy();
    this.#child.stderr?.destroy();
    this.#outputRead();
  }

  async *#chunks(): AsyncGenerator<OutputChunk> {
    const { stdout, stderr } = this.#child;
    const readers = new Map(
      (
        [
          ["stdout", stdout],
          ["stderr", stderr],
        ] as const
      ).map(([stream, from]) => [stream, chunkReader(from as Readable)]),
    );
    const next = new Map(Array.from(readers, ([stream, read]) => [stream, tagChunk(stream, read())]));
    try {
      while (next.size > 0) {
        const drained = this.ended.then(() => sleep(DRAIN_MS)).then(() => undefined);
        const first = await Promise.race([...next.values(), drained]);
        if (first === undefined) break;
        if (first.data === undefined) next.delete(first.stream);
        else {
          yield { stream: first.stream, data: first.data };
          next.set(first.stream, tagChunk(first.stream, readers.get(first.stream)?.() ?? noData));
        }
      }
      if (this.#machineDied) throw new RuntimeError("machine_died", "the machine ended");
    } finally {
      this.#outputRead();
    }
  }
}

const noData = Promise.resolve(undefined);

async function tagChunk(stream: "stdout" | "stderr", data: Promise<Buffer | undefined>) {
  return { stream, data: await data };
}

/** Returns a function that reads a chunk on demand only, so that unread output blocks the process. */
function chunkReader(from: Readable): () => Promise<Buffer | undefined> {
  const chunks = from.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
  return () =>
    chunks.next().then(
      ({ value, done }) => (done === true ? undefined : (value as Buffer)),
      () => undefined,
    );
}
