/**
 * Reads the output of a process from its machine into the environment's log. The machine keeps the last 16 MiB and
 * never waits for the reader. Reading is limited in rate, so a flood slows down neither the app nor the server.
 * Dropped bytes are counted in the log.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { CommandRecord, Guest } from "#machines/host/guest.ts";
import type { LogLine, LogRing } from "#machines/host/log-rings.ts";
import { type SplitLine, Splitter } from "./line-splitter.ts";

/** Rate limit, and largest burst. A start or a stack trace has fewer bytes. */
const bytesPerSecond = 1024 ** 2;
const burstBytes = 4 * 1024 ** 2;
const pauseMs = 250;
/** A reader that is further behind skips to this distance from the end. */
const behindBytes = 1024 ** 2;
const leadBytes = 256 * 1024;

/** Parses a line. Undefined if the line does not belong in the log. */
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

  /** Resumes at the position where an earlier server stopped. */
  async recover(): Promise<void> {
    const { lines } = await this.#ring.tail(recoverLines);
    const last = lines.findLast(({ from }) => from?.source === this.#source)?.from;
    if (last) this.#splitter = new Splitter(last);
  }

  /** Reads until the process has ended, and returns its record. */
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

  /** Undefined if the output came faster than the limit. */
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
 * Lines that are searched for a position. If the server wrote all of them, the output is read and logged a second
 * time.
 */
const recoverLines = 20_000;
