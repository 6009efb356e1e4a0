/**
 * Output in pieces, as lines. What an app writes is anything: bytes that are no text become U+FFFD, a line without an
 * end is cut, and each line says how far its reader has come, so that a later one misses nothing and repeats nothing.
 */
import type { LogLine } from "#machines/host/log-rings.ts";

type Stream = "stdout" | "stderr";
/** Offsets in all the process ever wrote. */
export type Position = Omit<NonNullable<LogLine["from"]>, "source">;

export interface SplitLine {
  stream: Stream;
  text: string;
  position: Position;
}

/** Longer lines come in pieces. */
const lineBytes = 8 * 1024;
const newline = 10;

interface Tail {
  /** What has no end yet. */
  rest: Buffer;
  /** Behind the last line that was handed on; where nothing else came between, `rest` begins there. */
  done: number;
  /** Where `rest` begins. */
  at: number;
}

export class Splitter {
  readonly #tails: Record<Stream, Tail>;
  #at: number;

  constructor({ stdout, stderr, next }: Position = { stdout: 0, stderr: 0, next: 0 }) {
    this.#tails = { stdout: newTail(stdout), stderr: newTail(stderr) };
    this.#at = next;
  }

  /** Behind the last byte that was taken. */
  get at(): number {
    return this.#at;
  }

  push(stream: Stream, data: Buffer, offset: number): SplitLine[] {
    const tail = this.#tails[stream];
    this.#at = offset + data.length;
    // Handed on before this reader came.
    const known = Math.min(data.length, Math.max(0, tail.done - offset));
    if (known === data.length) return [];
    if (tail.rest.length === 0) tail.at = offset + known;
    // Between two pieces of one stream lie those of the other: an offset within `rest` cannot be counted on.
    const before = tail.rest.length;
    const bytes = Buffer.concat([tail.rest, data.subarray(known)]);
    const lines: SplitLine[] = [];
    let from = 0;
    for (;;) {
      const end = bytes.indexOf(newline, from);
      const isLong = (end === -1 ? bytes.length : end) - from > lineBytes;
      if (end === -1 && !isLong) break;
      const to = isLong ? cut(bytes, from, from + lineBytes) : end;
      const next = isLong ? to : end + 1;
      tail.done = offset + known + next - before;
      lines.push({ stream, text: toText(bytes.subarray(from, to)), position: this.#position(tail.done) });
      from = next;
    }
    tail.rest = Buffer.from(bytes.subarray(from));
    if (from >= before) tail.at = offset + known + from - before;
    return lines;
  }

  /** The process has ended: what has no end is a line as well. */
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

  /** Goes on elsewhere: what lies between is lost. */
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

/** At most `to`, and not within a character of UTF-8. */
function cut(bytes: Buffer, from: number, to: number): number {
  for (let at = to; at > to - 4 && at > from; at -= 1) {
    if (((bytes[at] ?? 0) & 0b1100_0000) !== 0b1000_0000) return at;
  }
  return to;
}

function toText(bytes: Buffer): string {
  // A NUL is text to JSON and to no terminal, file or database that the line may end up in.
  return bytes.toString("utf8").replaceAll("\0", "\u{fffd}").replace(/\r$/, "");
}
