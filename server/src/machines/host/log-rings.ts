/**
 * Output of processes on this host's disk, by owner. A ring holds lines of JSON in a few files; a new file replaces the
 * oldest. A ring outlives the machines that wrote to it. Every line has an ascending number, so that a returning reader
 * continues where it stopped.
 *
 * Lines are written in small batches and not synced. A killed writer may lose lines that are still in the machine. Each
 * line therefore records the writer's position in the machine's output.
 */
import { appendFile, mkdir, open, readdir, readFile, rm, truncate } from "node:fs/promises";
import { join } from "node:path";
import type { Logger } from "pino";

export interface RingOptions {
  segmentBytes: number;
  segments: number;
}

/** Default size of a ring: 8 MiB of the latest output. */
const defaults: RingOptions = { segmentBytes: 1024 ** 2, segments: 8 };
const flushAfterMs = 50;
const flushAtBytes = 64 * 1024;
/** Bytes that may wait for a slow disk before writers have to wait. */
const backlogBytes = 4 * 1024 ** 2;
const ringName = /^[a-z0-9][a-z0-9_-]{0,63}$/;
const segmentName = /^\d{15}\.jsonl$/;

export interface LogLine {
  /** Time of the line, in milliseconds since 1970. */
  at: number;
  /** `system`: a line of the server about the process. */
  stream: "stdout" | "stderr" | "system";
  text: string;
  /** Id of the deployment, or of the function's version, that ran. */
  deployment: string;
  /** Absent if the line has no level. */
  level?: "debug" | "info" | "warn" | "error";
  /** Id of the request that was being handled. */
  request_id?: string;
  /**
   * Source of the output and the writer's position in it: after the last line of each stream, and where to continue
   * reading. Absent for lines of the server.
   */
  from?: { source: string; stdout: number; stderr: number; next: number };
}

/** A stored line. */
export type KeptLine = LogLine & { n: number };

export class LogRings {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #options: RingOptions;
  readonly #rings = new Map<string, LogRing>();

  constructor(deps: { directory: string; log: Logger; options?: RingOptions }) {
    this.#directory = deps.directory;
    this.#log = deps.log;
    this.#options = deps.options ?? defaults;
  }

  of(name: string): LogRing {
    if (!ringName.test(name)) throw new Error(`${name} is no name of a ring`);
    const there = this.#rings.get(name);
    if (there) return there;
    const ring = new LogRing(join(this.#directory, name), this.#log, this.#options);
    this.#rings.set(name, ring);
    return ring;
  }

  /** Deletes a ring. A missing ring is no error. */
  async remove(name: string): Promise<void> {
    await this.of(name).close();
    this.#rings.delete(name);
    await rm(join(this.#directory, name), { recursive: true, force: true });
  }

  async close(): Promise<void> {
    await Promise.all(Array.from(this.#rings.values(), (ring) => ring.close()));
  }
}

export class LogRing {
  readonly #directory: string;
  readonly #log: Logger;
  readonly #options: RingOptions;
  /** Numbers of the first lines of the existing files, in ascending order. */
  #segments: number[] = [];
  #next = 1;
  #bytes = 0;
  #opened: Promise<void> | undefined;
  #waiting: string[] = [];
  #waitingBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #closed = false;
  readonly #listeners = new Set<(line: KeptLine) => void>();

  constructor(directory: string, log: Logger, options: RingOptions) {
    this.#directory = directory;
    this.#log = log;
    this.#options = options;
  }

  /** Appends lines in order. Waits only while the disk is far behind the writers. */
  async append(lines: readonly LogLine[]): Promise<void> {
    if (lines.length === 0) return;
    await this.#open();
    for (const line of lines) {
      const numbered = { n: this.#next, ...line };
      this.#next += 1;
      const text = `${JSON.stringify(numbered)}\n`;
      this.#waiting.push(text);
      this.#waitingBytes += text.length;
      for (const listener of this.#listeners) listener(numbered);
    }
    if (this.#waitingBytes > backlogBytes) await this.flush();
    else if (this.#waitingBytes > flushAtBytes) void this.flush();
    else this.#timer ??= setTimeout(() => void this.flush(), flushAfterMs).unref();
  }

  /** Returns the last lines, at most `count`, in ascending order. `truncated`: there were older lines. */
  async tail(count: number): Promise<{ lines: KeptLine[]; truncated: boolean }> {
    await this.#open();
    await this.flush();
    const lines: KeptLine[][] = [];
    let found = 0;
    for (const first of this.#segments.toReversed()) {
      const more = await this.#read(first);
      lines.unshift(more);
      found += more.length;
      if (found >= count) break;
    }
    const last = lines.flat().slice(-count);
    return { lines: last, truncated: (last[0]?.n ?? 1) > 1 };
  }

  /** Yields the lines after number `after`, then new lines, until `signal` aborts. */
  async *follow(after: number, signal: AbortSignal): AsyncGenerator<KeptLine, void, undefined> {
    await this.#open();
    const queue: KeptLine[] = [];
    let woken = Promise.withResolvers<void>();
    let at = after;
    const wake = (): void => woken.resolve();
    const hear = (line: KeptLine): void => {
      // A reader that is so far behind reads the line from the files instead.
      if (queue.length < followerLines) queue.push(line);
      wake();
    };
    this.#listeners.add(hear);
    signal.addEventListener("abort", wake, { once: true });
    try {
      while (!signal.aborted) {
        if (queue.length === 0 && this.#next - 1 <= at) {
          await woken.promise;
          woken = Promise.withResolvers<void>();
          continue;
        }
        const [head] = queue;
        let mayMiss = head === undefined || head.n > at + 1;
        if (mayMiss) {
          const written = this.#next - 1;
          for (const line of await this.#after(at)) {
            if (signal.aborted) return;
            yield line;
            at = line.n;
          }
          // Lines that the disk refused are lost.
          if (queue.length === 0) at = Math.max(at, written);
        }
        while (queue[0] !== undefined && (mayMiss || queue[0].n <= at + 1) && !signal.aborted) {
          const { n } = queue[0];
          const line = queue.shift();
          if (line === undefined || n <= at) continue;
          mayMiss = false;
          yield line;
          at = n;
        }
      }
    } finally {
      this.#listeners.delete(hear);
      signal.removeEventListener("abort", wake);
    }
  }

  /** Number of the last line; 0 if there is none. */
  async lastNumber(): Promise<number> {
    await this.#open();
    return this.#next - 1;
  }

  flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const text = this.#waiting.join("");
    if (text !== "") {
      this.#waiting = [];
      this.#waitingBytes = 0;
      this.#writing = this.#writing
        .then(() => this.#write(text))
        // A full disk loses lines of the log, but does not stop the app or the server.
        .catch((error: unknown) => this.#log.warn({ err: error }, "could not write lines of a log"));
    }
    return this.#writing;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.flush();
  }

  async #write(text: string): Promise<void> {
    const current = this.#segments.at(-1);
    if (current === undefined || this.#bytes >= this.#options.segmentBytes) {
      const { n } = JSON.parse(text.slice(0, text.indexOf("\n"))) as { n: number };
      await mkdir(this.#directory, { recursive: true, mode: 0o700 });
      await appendFile(this.#file(n), text, { mode: 0o600 });
      this.#segments.push(n);
      this.#bytes = Buffer.byteLength(text);
      while (this.#segments.length > this.#options.segments) {
        await rm(this.#file(this.#segments.shift() ?? 0), { force: true });
      }
      return;
    }
    await appendFile(this.#file(current), text);
    this.#bytes += Buffer.byteLength(text);
  }

  #open(): Promise<void> {
    if (this.#closed) throw new Error("the ring is closed");
    this.#opened ??= this.#recover();
    return this.#opened;
  }

  /** Cuts off a line that a killed process wrote only in part. */
  async #recover(): Promise<void> {
    const names = (await namesIn(this.#directory)).filter((name) => segmentName.test(name)).sort();
    this.#segments = names.map((name) => Number.parseInt(name, 10));
    const last = this.#segments.at(-1);
    if (last === undefined) return;
    const text = await readFile(this.#file(last));
    const whole = text.lastIndexOf("\n") + 1;
    if (whole < text.length) await truncate(this.#file(last), whole);
    this.#bytes = whole;
    this.#next = ((await this.#read(last)).at(-1)?.n ?? last - 1) + 1;
  }

  async #after(number: number): Promise<KeptLine[]> {
    await this.flush();
    // The file that holds the next line, and all later files.
    const from = this.#segments.findLastIndex((first) => first <= number + 1);
    const lines: KeptLine[] = [];
    for (const first of this.#segments.slice(Math.max(0, from))) {
      for (const line of await this.#read(first)) if (line.n > number) lines.push(line);
    }
    return lines;
  }

  async #read(first: number): Promise<KeptLine[]> {
    const file = await open(this.#file(first)).catch((error: NodeJS.ErrnoException) => {
      // The oldest file was removed between the listing and this read.
      if (error.code !== "ENOENT") throw error;
    });
    if (!file) return [];
    try {
      const text = await file.readFile("utf8");
      return text
        .slice(0, text.lastIndexOf("\n") + 1)
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line) as KeptLine);
    } finally {
      await file.close();
    }
  }

  #file(first: number): string {
    return join(this.#directory, `${String(first).padStart(15, "0")}.jsonl`);
  }
}

const followerLines = 10_000;

function namesIn(directory: string): Promise<string[]> {
  return readdir(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
}
