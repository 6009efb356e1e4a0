/**
 * Frames: `u32 LE length | u8 type | payload`, as specified in guest/PROTOCOL.md. Pure.
 *
 * Frames of a guest come from untrusted programs in the machine. The decoder holds at most one frame of at most
 * `MAX_FRAME_BYTES`, whatever the header states. The decoder throws on the first violation, and the caller closes the
 * connection.
 */
import { RuntimeError } from "../driver.ts";

export const HEADER_BYTES = 5;
/** Payload limit of every frame except a request. */
export const MAX_FRAME_BYTES = 256 * 1024;
/** Payload limit of a request, the first frame of a connection, from host to guest. */
export const MAX_REQUEST_BYTES = 1024 * 1024;

export interface Frame {
  type: number;
  payload: Buffer;
}

export function protocolError(message: string, details: Record<string, unknown> = {}): RuntimeError {
  return new RuntimeError("guest_protocol", `the machine's guest broke the protocol: ${message}`, {
    details,
  });
}

export function encodeHeader(type: number, length: number): Buffer {
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  header.writeUInt32LE(length, 0);
  header[4] = type;
  return header;
}

export function encodeFrame(type: number, payload: Buffer): Buffer {
  return Buffer.concat([encodeHeader(type, payload.length), payload]);
}

/**
 * Decodes bytes into frames. Push a piece only after `next()` has returned undefined: the decoder has no queue.
 * A frame of the type `streamed` may be returned in several pieces without being collected. This type carries
 * content, whose frames have no meaning by themselves.
 */
export class FrameDecoder {
  readonly #streamed: number | undefined;
  #streamedLeft = 0;
  #piece: Buffer = Buffer.alloc(0);
  #header: Buffer = Buffer.alloc(HEADER_BYTES);
  #headerLength = 0;
  #payload: Buffer | undefined;
  #payloadLength = 0;

  constructor(streamed?: number) {
    this.#streamed = streamed;
  }

  push(piece: Buffer): void {
    if (this.#piece.length > 0) throw new Error("the decoder still holds a piece");
    this.#piece = piece;
  }

  /**
   * Returns the pushed bytes that belong to no returned frame, for a protocol that changes from frames to
   * bytes.
   */
  rest(): Buffer {
    if (this.#headerLength > 0) throw protocolError("a frame is cut short");
    const rest = this.#piece;
    this.#piece = Buffer.alloc(0);
    return rest;
  }

  next(): Frame | undefined {
    if (this.#headerLength < HEADER_BYTES && !this.#readHeader()) return undefined;
    const length = this.#header.readUInt32LE(0);
    if (length > MAX_FRAME_BYTES) throw protocolError("a frame is too long", { length });
    const type = this.#header[4] as number;
    if (type === this.#streamed && length > 0) return this.#nextPart(type, length);
    const payload = this.#readPayload(length);
    if (!payload) return undefined;
    this.#headerLength = 0;
    return { type, payload };
  }

  #nextPart(type: number, length: number): Frame | undefined {
    if (this.#streamedLeft === 0) this.#streamedLeft = length;
    const payload = this.#take(this.#streamedLeft);
    if (payload.length === 0) return undefined;
    this.#streamedLeft -= payload.length;
    if (this.#streamedLeft === 0) this.#headerLength = 0;
    return { type, payload };
  }

  #take(count: number): Buffer {
    const taken = this.#piece.subarray(0, count);
    this.#piece = this.#piece.subarray(taken.length);
    return taken;
  }

  #readHeader(): boolean {
    const part = this.#take(HEADER_BYTES - this.#headerLength);
    this.#header.set(part, this.#headerLength);
    this.#headerLength += part.length;
    return this.#headerLength === HEADER_BYTES;
  }

  /** Does not copy a payload in one piece. Collects other payloads in a buffer of their exact size. */
  #readPayload(length: number): Buffer | undefined {
    if (!this.#payload) {
      if (this.#piece.length >= length) return this.#take(length);
      this.#payload = Buffer.allocUnsafe(length);
      this.#payloadLength = 0;
    }
    const part = this.#take(length - this.#payloadLength);
    this.#payload.set(part, this.#payloadLength);
    this.#payloadLength += part.length;
    if (this.#payloadLength < length) return undefined;
    const payload = this.#payload;
    this.#payload = undefined;
    return payload;
  }
}
