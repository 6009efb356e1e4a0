/**
 * A request on its own connection, and the frames of the reply. Frames are pulled: without a pending `next()`,
 * the socket is not read, and the guest blocks on a full buffer. Every fault ends in a `RuntimeError` and a
 * destroyed socket.
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

  /** Returns the next frame. `timeoutMs` limits the guest's silence; null is no limit. */
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

  /**
   * Returns the payload of the next frame, which must be of this type. Throws the error of an ERROR frame.
   */
  async expect(type: number, timeoutMs: number | null): Promise<Buffer> {
    const frame = await this.next(timeoutMs);
    if (frame.type !== type) throw this.refuse(frame);
    return frame.payload;
  }

  /** Returns the error for an unexpected frame, or the error in an ERROR frame. Ends the exchange. */
  refuse(frame: Frame): RuntimeError {
    this.destroy();
    if (frame.type !== REPLIES.ERROR) return protocolError("a reply out of order", { type: frame.type });
    return parse(this, frame.payload, parseError);
  }

  /**
   * Sends a frame, header and payload in one system call. Resolves when more may be sent, or when a reply has
   * arrived.
   */
  async send(type: number, payload: Buffer | undefined, timeoutMs: number | null): Promise<void> {
    const socket = this.#socket;
    socket.cork();
    let flowing = socket.write(encodeHeader(type, payload?.length ?? 0));
    if (payload && payload.length > 0) flowing = socket.write(payload);
    socket.uncork();
    while (!flowing && socket.writableNeedDrain && !this.hasAnswer && !this.isEnded)
      await this.#changed(timeoutMs);
  }

  /** Sends a frame without waiting. Calls `done` once the bytes are sent or can no longer be sent. */
  sendAndForget(type: number, payload: Buffer, done: () => void): void {
    if (this.isEnded) return done();
    this.#socket.cork();
    this.#socket.write(encodeHeader(type, payload.length));
    this.#socket.write(payload, () => done());
    this.#socket.uncork();
  }

  /** True if the guest has sent something that was not read yet. */
  get hasAnswer(): boolean {
    return this.#socket.readableLength > 0;
  }

  /** Hands the connection over as a plain stream of bytes. The exchange has ended then. */
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

/** Returns the parsed payload. A malformed payload ends the exchange. */
export function parse<T>(exchange: Exchange, payload: Buffer, parser: (payload: Buffer) => T): T {
  try {
    return parser(payload);
  } catch (error) {
    exchange.destroy();
    throw error;
  }
}
