/**
 * One request on one connection, and the frames that answer it. Frames are pulled: while nobody asks for the next
 * one, the socket is not read, and the guest stops at a full buffer. Whatever goes wrong ends in a `RuntimeError`
 * and a destroyed socket.
 */
import type { Socket } from "node:net";
import { RuntimeError } from "../driver.ts";
import { FrameDecoder, encodeHeader, protocolError } from "./frames.ts";
import type { Frame } from "./frames.ts";
import type { GuestConnections } from "./connections.ts";
import { REPLIES, parseError } from "./protocol.ts";

export class Exchange {
  readonly #socket: Socket;
  readonly #connections: GuestConnections;
  readonly #decoder = new FrameDecoder(REPLIES.DATA);
  #wake: (() => void) | undefined;
  #ended = false;
  readonly #onReadable = (): void => this.#wake?.();
  readonly #onEnd = (): void => {
    this.#ended = true;
    this.#wake?.();
  };

  private constructor(socket: Socket, connections: GuestConnections) {
    this.#socket = socket;
    this.#connections = connections;
    socket.on("readable", this.#onReadable);
    socket.on("drain", this.#onReadable);
    socket.on("end", this.#onEnd);
    socket.on("close", this.#onEnd);
  }

  /** Takes a connection and sends the request's frame on it. */
  static async begin(connections: GuestConnections, request: Buffer): Promise<Exchange> {
    const socket = await connections.take();
    const exchange = new Exchange(socket, connections);
    socket.write(request);
    return exchange;
  }

  get isEnded(): boolean {
    return this.#ended || this.#socket.destroyed;
  }

  destroy(): void {
    this.#socket.destroy();
  }

  /** The next frame. `timeoutMs` is how long the guest may be silent; null is for ever. */
  async next(timeoutMs: number | null): Promise<Frame> {
    try {
      for (;;) {
        const frame = this.#decoder.next();
        if (frame) return frame;
        const piece = this.#socket.read() as Buffer | null;
        if (piece) this.#decoder.push(piece);
        else if (this.isEnded) throw this.#connections.endOf(this.#socket);
        else await this.#changed(timeoutMs);
      }
    } catch (error) {
      this.destroy();
      throw error;
    }
  }

  /** The payload of the next frame, which must be of this type; an ERROR frame is thrown as what it says. */
  async expect(type: number, timeoutMs: number | null): Promise<Buffer> {
    const frame = await this.next(timeoutMs);
    if (frame.type !== type) throw this.refuse(frame);
    return frame.payload;
  }

  /** The error for a frame that was not expected here, or the one that an ERROR frame carries. Ends the exchange. */
  refuse(frame: Frame): RuntimeError {
    this.destroy();
    if (frame.type !== REPLIES.ERROR) return protocolError("a reply out of order", { type: frame.type });
    return parse(this, frame.payload, parseError);
  }

  /** Sends a frame, header and payload in one system call. Resolves when more may be sent, or an answer is there. */
  async send(type: number, payload: Buffer | undefined, timeoutMs: number | null): Promise<void> {
    const socket = this.#socket;
    socket.cork();
    let flowing = socket.write(encodeHeader(type, payload?.length ?? 0));
    if (payload && payload.length > 0) flowing = socket.write(payload);
    socket.uncork();
    while (!flowing && socket.writableNeedDrain && !this.hasAnswer && !this.isEnded)
      await this.#changed(timeoutMs);
  }

  /** Sends without waiting; calls back once the bytes have left or never will. */
  sendAndForget(type: number, payload: Buffer, done: () => void): void {
    if (this.isEnded) return done();
    this.#socket.cork();
    this.#socket.write(encodeHeader(type, payload.length));
    this.#socket.write(payload, () => done());
    this.#socket.uncork();
  }

  /** Whether the guest has said something that was not read yet. */
  get hasAnswer(): boolean {
    return this.#socket.readableLength > 0;
  }

  /** Gives the connection away as a plain stream of bytes. The exchange is over. */
  toStream(): Socket {
    const socket = this.#socket;
    const rest = this.#decoder.rest();
    socket.off("readable", this.#onReadable);
    socket.off("drain", this.#onReadable);
    socket.off("end", this.#onEnd);
    socket.off("close", this.#onEnd);
    if (rest.length > 0) socket.unshift(rest);
    return socket;
  }

  /** Resolves when the socket is readable, drained or ended. */
  #changed(timeoutMs: number | null): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer =
        timeoutMs === null
          ? undefined
          : setTimeout(() => {
              this.#wake = undefined;
              this.destroy();
              reject(new RuntimeError("timeout", `the machine's guest was silent for ${timeoutMs} ms`));
            }, timeoutMs);
      this.#wake = () => {
        this.#wake = undefined;
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Parses a payload; a malformed one ends the exchange. */
export function parse<T>(exchange: Exchange, payload: Buffer, parser: (payload: Buffer) => T): T {
  try {
    return parser(payload);
  } catch (error) {
    exchange.destroy();
    throw error;
  }
}
