/**
 * Copies a process's output from its machine to the environment's log. The machine keeps the last 16 MiB and never
 * waits for the reader. The reader is limited in rate, so a flood of output slows down neither the app nor the server.
 * The log counts dropped bytes.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { LogLine, LogRing } from "#machines/host/log-rings.ts";
import { type SplitLine, Splitter } from "./line-splitter.ts";

/** Limits of the rate and of a burst. The output of a start or a stack trace is below both. */
const bytesPerSecond = 1024 ** 2;
const burstBytes = 4 * 1024 ** 2;
const pauseMs = 250;
/** A reader that is further behind than this continues `leadBytes` before the end of the output. */
const behindBytes = 1024 ** 2;
const leadBytes = 256 * 1024;

/** Parses a line of output. Returns undefined for a line that does not belong in the log. */
export type ReadLine = (line: Pick<LogLine, "stream" | "text">) => Partial<LogLine> | undefined;

const asItIs: ReadLine = (line) => line;

export class Output {
  readonly #ring: LogRing;
  readonly #deployment: string;
  readonly #source: string;
  readonly #read: ReadLine;
  #splitter = new Splitter();
  #budget = burstBytes;
  #filledAt = performance.now();

  constructor(ring: LogRing, options: { deployment: string; source: string; read?: ReadLine }) {
    this.#ring = ring;
    this.#deployment = options.deployment;
    this.#source = options.source;
    this.#read = options.read ?? asItIs;
  }

  /** Continues at the position that an earlier server reached. */
  async recover(): Promise<void> {
    const { lines } = await this.#ring.tail(recoverLines);
    const last = lines.findLast(({ from }) => from?.source === this.#source)?.from;
    if (last) this.#splitter = new Splitter(last);
  }

  /** Copies output until the process has ended, and returns the process's record. */
  async read(guest: Guest, command: string, signal: AbortSignal): Promise<CommandRecord> {
    for (;;) {
      const record = await this.#readSome(guest, command, signal);
      if (record) {
        await this.#keep(this.#splitter.end());
        return record;
      }
      await sleep(pauseMs, undefined, { signal });
      const { outputBytes } = await guest.getCommand(command);
      if (outputBytes - this.#splitter.at > behindBytes) await this.#passOver(outputBytes - leadBytes);
    }
  }

  /** Copies some output. Returns undefined if output came faster than the limit. */
  async #readSome(guest: Guest, command: string, signal: AbortSignal): Promise<CommandRecord | undefined> {
    const output = guest.followCommand(command, this.#splitter.at, signal);
    try {
      for (;;) {
        const step = await output.next();
        if (step.done) return step.value;
        const { stream, data, offset } = step.value;
        if (offset > this.#splitter.at) await this.#passOver(offset);
        await this.#keep(this.#splitter.push(stream, data, offset));
        if (!this.#spend(data.length)) return undefined;
      }
    } finally {
      await output.return(undefined as never).catch(() => {});
    }
  }

  async #passOver(to: number): Promise<void> {
    const bytes = to - this.#splitter.at;
    this.#splitter.skipTo(to);
    await this.#ring.append([
      this.#line(
        "system",
        `${bytes} bytes of output were dropped, because the app writes faster than the log accepts.`,
      ),
    ]);
  }

  #keep(lines: readonly SplitLine[]): Promise<void> {
    return this.#ring.append(
      lines.flatMap(({ stream, text, position }) => {
        const parsed = this.#read({ stream, text });
        if (parsed === undefined) return [];
        return [{ ...this.#line(stream, text), ...parsed, from: { source: this.#source, ...position } }];
      }),
    );
  }

  #line(stream: LogLine["stream"], text: string): LogLine {
    return { at: Date.now(), stream, text, deployment: this.#deployment };
  }

  #spend(bytes: number): boolean {
    const now = performance.now();
    this.#budget = Math.min(burstBytes, this.#budget + ((now - this.#filledAt) / 1000) * bytesPerSecond);
    this.#filledAt = now;
    this.#budget -= bytes;
    return this.#budget > 0;
  }
}

/**
 * Log lines that are searched for the last position. If all of them are the server's own lines, the output is read and
 * logged a second time.
 */
const recoverLines = 20_000;
