/**
 * DNS questions over one TCP connection: messages with their length before them (RFC 1035 §4.2.2). Each message is
 * checked whole before any byte of it is forwarded. Buffers one message of at most 64 KiB.
 */
import { Transform, type TransformCallback } from "node:stream";

const LENGTH_BYTES = 2;

/** Emits `kind` before the first output: `own` for local answers, `passed` for forwarded questions. */
export class QuestionStream extends Transform {
  readonly #answer: (message: Buffer) => Buffer | undefined;
  #rest: Buffer = Buffer.alloc(0);
  #kind: "own" | "passed" | undefined;

  /** `answer` returns a local answer, or undefined for a message that is forwarded. */
  constructor(answer: (message: Buffer) => Buffer | undefined) {
    super();
    this.#answer = answer;
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    this.#rest = Buffer.concat([this.#rest, chunk]);
    for (let message = this.#next(); message !== undefined; message = this.#next()) {
      const answer = this.#answer(message);
      const kind = answer === undefined ? "passed" : "own";
      if (this.#kind === undefined) this.emit("kind", (this.#kind = kind));
      if (kind !== this.#kind) return done(new Error("questions of both kinds on one connection"));
      this.push(addLength(answer ?? message));
    }
    done();
  }

  #next(): Buffer | undefined {
    if (this.#rest.length < LENGTH_BYTES) return undefined;
    const end = LENGTH_BYTES + this.#rest.readUInt16BE(0);
    if (this.#rest.length < end) return undefined;
    const message = this.#rest.subarray(LENGTH_BYTES, end);
    this.#rest = this.#rest.subarray(end);
    return message;
  }
}

function addLength(message: Buffer): Buffer {
  const length = Buffer.alloc(LENGTH_BYTES);
  length.writeUInt16BE(message.length);
  return Buffer.concat([length, message]);
}
