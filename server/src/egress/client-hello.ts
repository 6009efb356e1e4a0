/**
 * Reads only the server name from the first bytes of a TLS client (RFC 8446 §4.1.2, RFC 6066 §3). The bytes come from
 * inside a machine, so every length is checked against the available bytes. A hello may be split into several records
 * at any point.
 */

/** Maximum length of a hello. A hello with post-quantum keys has about 1.8 kB; a session ticket adds a few kB. */
export const MAX_HELLO_BYTES = 16_384;

const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const HOST_NAME = 0;
/** Fatal alert access_denied (RFC 8446 §6), which a client shows in its error message. */
export const ACCESS_DENIED_ALERT = Buffer.from("15030100020231", "hex");

export type Hello =
  /** More bytes are needed. */
  | { state: "incomplete" }
  /** Not TLS, or invalid TLS. */
  | { state: "malformed" }
  /** `serverName` is as the client wrote it. Null if the hello has none. */
  | { state: "complete"; serverName: string | null };

export function readHello(bytes: Buffer): Hello {
  try {
    const handshake = joinRecords(bytes);
    if (handshake === undefined) return { state: "incomplete" };
    return { state: "complete", serverName: readServerName(new Reader(handshake)) };
  } catch (error) {
    if (error instanceof RangeError) return { state: "malformed" };
    throw error;
  }
}

/** Joins the records of the first handshake message. Undefined until the message is complete. */
function joinRecords(bytes: Buffer): Buffer | undefined {
  const parts: Buffer[] = [];
  let have = 0;
  for (let at = 0; at < bytes.length;) {
    if (bytes[at] !== HANDSHAKE_RECORD) throw new RangeError("not a handshake record");
    if (at + 1 < bytes.length && bytes[at + 1] !== 3) throw new RangeError("not TLS");
    if (at + 5 > bytes.length) return undefined;
    const length = bytes.readUInt16BE(at + 3);
    if (length === 0 || length > MAX_HELLO_BYTES) throw new RangeError("a record with an invalid length");
    const part = bytes.subarray(at + 5, at + 5 + length);
    parts.push(part);
    have += part.length;
    at += 5 + length;

    const joined = parts.length === 1 ? part : Buffer.concat(parts);
    if (joined[0] !== undefined && joined[0] !== CLIENT_HELLO) throw new RangeError("not a hello");
    if (have < 4) continue;
    const whole = 4 + joined.readUIntBE(1, 3);
    if (whole > MAX_HELLO_BYTES) throw new RangeError("a hello with an invalid length");
    if (have >= whole) return joined.subarray(4, whole);
  }
  return undefined;
}

function readServerName(hello: Reader): string | null {
  hello.skip(2 + 32);
  hello.block(1);
  hello.block(2);
  hello.block(1);
  if (hello.isAtEnd) return null;
  const extensions = hello.block(2);
  if (!hello.isAtEnd) throw new RangeError("bytes after the hello");
  let found: string | null = null;
  while (!extensions.isAtEnd) {
    const type = extensions.number(2);
    const extension = extensions.block(2);
    if (type !== SERVER_NAME) continue;
    // With two names, the destination could read the other name.
    if (found !== null) throw new RangeError("two server names");
    const names = extension.block(2);
    if (!extension.isAtEnd || names.number(1) !== HOST_NAME) throw new RangeError("an unknown type of name");
    found = names.block(2).rest().toString("latin1");
    if (!names.isAtEnd) throw new RangeError("two server names");
  }
  return found;
}

/** Reads fields from the front. Throws a RangeError for an incomplete field. */
class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  skip(count: number): void {
    this.#take(count);
  }

  number(width: 1 | 2): number {
    return this.#take(width).readUIntBE(0, width);
  }

  /** Reads a length field of `lengthWidth` bytes, and returns a reader over the block of this length. */
  block(lengthWidth: 1 | 2): Reader {
    return new Reader(this.#take(this.number(lengthWidth)));
  }

  rest(): Buffer {
    return this.#take(this.#bytes.length - this.#at);
  }

  #take(count: number): Buffer {
    const end = this.#at + count;
    if (end > this.#bytes.length) throw new RangeError("a field exceeds the message");
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }
}
