/**
 * Splits a process's output into lines. The output is arbitrary: invalid bytes become U+FFFD, and a long line is cut.
 * Each line carries the position of its end. A later reader resumes there, and neither loses nor repeats a line.
 */
import type { LogLine } from "#machines/host/log-rings.ts";

type Stream = "stdout" | "stderr";
/** Byte offsets in the process's whole output. */
export type Position = Omit<NonNullable<LogLine["from"]>, "source">;

export interface SplitLine {
  stream: Stream;
  text: string;
  position: Position;
}

/** Longest line in bytes. A longer line is cut into pieces. */
const lineBytes = 8 * 1024;
const newline = 10;

interface Tail {
  /** Bytes of an unfinished line. */
  rest: Buffer;
  /** Offset after the last returned line. `rest` begins at this offset if no other stream wrote in between. */
  done: number;
  /** Offset at which `rest` begins. */
  at: number;
}

export class Splitter {
  readonly #tails: Record<Stream, Tail>;
  #at: number;

  constructor({ stdout, stderr, next }: Position = { stdout: 0, stderr: 0, next: 0 }) {
    this.#tails = { stdout: newTail(stdout), stderr: newTail(stderr) };
    this.#at = next;
  }

  /** Offset after the last byte that was added. */
  get at(): number {
    return this.#at;
  }

  push(stream: Stream, data: Buffer, offset: number): SplitLine[] {
    const tail = this.#tails[stream];
    this.#at = offset + data.length;
    // Number of bytes that an earlier reader already returned.
    const known = Math.min(data.length, Math.max(0, tail.done - offset));
    if (known === data.length) return [];
    if (tail.rest.length === 0) tail.at = offset + known;
    // The other stream's output may lie between two pieces of this stream, so offsets within `rest` are not exact.
    const before = tail.rest.length;
    const bytes = Buffer.concat([tail.rest, data.subarray(known)]);
    const lines: SplitLine[] = [];
    let from = 0;
    for (;;) {
      const end = bytes.indexOf(newline, from);
      const isLong = (end === -1 ? bytes.length : end) - from > lineBytes;
      if (end === -1 && !isLong) break;
      const to = isLong ? characterBoundary(bytes, from, from + lineBytes) : end;
      const next = isLong ? to : end + 1;
      tail.done = offset + known + next - before;
      lines.push({ stream, text: toText(bytes.subarray(from, to)), position: this.#position(tail.done) });
      from = next;
    }
    tail.rest = Buffer.from(bytes.subarray(from));
    if (from >= before) tail.at = offset + known + from - before;
    return lines;
  }

  /** Returns the unfinished lines. Called when the process has ended. */
  end(): SplitLine[] {
    return (["stdout", "stderr"] as const).flatMap((stream) => {
      const tail = this.#tails[stream];
      if (tail.rest.length === 0) return [];
      const text = toText(tail.rest);
      tail.rest = Buffer.alloc(0);
      tail.done = this.#at;
      return [{ stream, text, position: this.#position(this.#at) }];
    });
  }

  /** Resumes at a later offset. The output before that offset is lost. */
  skipTo(offset: number): void {
    this.#at = offset;
    for (const tail of Object.values(this.#tails)) tail.rest = Buffer.alloc(0);
  }

  #position(next: number): Position {
    const { stdout, stderr } = this.#tails;
    const open = [stdout, stderr].filter(({ rest, at, done }) => rest.length > 0 && at >= done);
    return { stdout: stdout.done, stderr: stderr.done, next: Math.min(next, ...open.map(({ at }) => at)) };
  }
}

function newTail(done: number): Tail {
  return { rest: Buffer.alloc(0), done, at: done };
}

/** Returns the start of the UTF-8 character at `to`, or `to` itself. */
function characterBoundary(bytes: Buffer, from: number, to: number): number {
  for (let at = to; at > to - 4 && at > from; at -= 1) {
    if (((bytes[at] ?? 0) & 0b1100_0000) !== 0b1000_0000) return at;
  }
  return to;
}

function toText(bytes: Buffer): string {
  // JSON allows NUL in a text. Terminals, files and PostgreSQL do not.
  return bytes.toString("utf8").replaceAll("\0", "\u{fffd}").replace(/\r$/, "");
}
