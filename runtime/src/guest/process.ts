/**
 * A process inside, as a handle for its caller. Output is pulled frame by frame. Unread output fills the
 * socket, then the pipe, and then blocks the process, not the server.
 */
import type { GuestProcess, OutputChunk, ProcessExit } from "../driver.ts";
import { RuntimeError } from "../driver.ts";
import { MAX_FRAME_BYTES } from "./frames.ts";
import type { Exchange } from "./exchange.ts";
import { parse } from "./exchange.ts";
import { REPLIES, SENT, parseExit } from "./protocol.ts";

export class RunningProcess implements GuestProcess {
  readonly pid: number;
  readonly exit: Promise<ProcessExit>;
  /** Output of the process, for one reader. A loop that ends early leaves the rest of the output for the next loop. */
  readonly output: AsyncIterable<OutputChunk>;
  readonly #exchange: Exchange;
  readonly #sendSignal: (pid: number, signal: number) => Promise<void>;
  readonly #settleExit: { resolve: (exit: ProcessExit) => void; reject: (error: unknown) => void };
  #isOver = false;

  constructor(exchange: Exchange, pid: number, sendSignal: (pid: number, signal: number) => Promise<void>) {
    this.pid = pid;
    this.#exchange = exchange;
    this.#sendSignal = sendSignal;
    const { promise, resolve, reject } = Promise.withResolvers<ProcessExit>();
    this.exit = promise;
    this.#settleExit = { resolve, reject };
    // The reader of the output gets the same error; without a reader it must not count as unhandled.
    promise.catch(() => {});
    this.output = { [Symbol.asyncIterator]: () => ({ next: () => this.#next() }) };
  }

  async #next(): Promise<IteratorResult<OutputChunk, undefined>> {
    while (!this.#isOver) {
      try {
        const { type, payload } = await this.#exchange.next(null);
        if (type === REPLIES.STDOUT && payload.length > 0) return chunk("stdout", payload);
        if (type === REPLIES.STDERR && payload.length > 0) return chunk("stderr", payload);
        if (type === REPLIES.EXIT) this.#end(parse(this.#exchange, payload, parseExit));
        else if (type !== REPLIES.STDOUT && type !== REPLIES.STDERR)
          throw this.#exchange.refuse({ type, payload });
      } catch (error) {
        if (this.#isOver) break;
        this.#isOver = true;
        this.#settleExit.reject(error);
        throw error;
      }
    }
    return { done: true, value: undefined };
  }

  #end(exit: ProcessExit): void {
    this.#isOver = true;
    this.#exchange.destroy();
    this.#settleExit.resolve(exit);
  }

  /**
   * Resolves when the bytes are sent, or when the process accepts no more: it may end without reading its
   * input.
   */
  async writeStdin(data: Buffer): Promise<void> {
    for (let at = 0; at < data.length && !this.#isOver; at += MAX_FRAME_BYTES) {
      const piece = data.subarray(at, at + MAX_FRAME_BYTES);
      await new Promise<void>((resolve) => this.#exchange.sendAndForget(SENT.STDIN, piece, resolve));
    }
  }

  endStdin(): void {
    this.#exchange.sendAndForget(SENT.STDIN_EOF, Buffer.alloc(0), () => {});
  }

  /**
   * Sends the signal on a separate connection, because this connection may be full of input that the process does not
   * read.
   */
  signal(signal: number): void {
    if (this.#isOver) return;
    // A process that has ended meanwhile needs no signal, and `output` reports a machine that died.
    this.#sendSignal(this.pid, signal).catch(() => {});
  }

  close(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#exchange.destroy();
    this.#settleExit.reject(new RuntimeError("failed", "the process was closed"));
  }
}

function chunk(stream: "stdout" | "stderr", data: Buffer): IteratorResult<OutputChunk, undefined> {
  return { done: false, value: { stream, data } };
}
