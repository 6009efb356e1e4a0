/**
 * Reads the server name out of the first bytes a TLS client sends (RFC 8446 §4.1.2, RFC 6066 §3), and nothing else.
 * The bytes come from inside a machine: every length is checked against what is there, and a hello may be cut into
 * several records as it pleases its writer.
 */

/** With post-quantum keys a hello has about 1.8 kB; a session ticket adds a few more. */
export const MAX_HELLO_BYTES = 16_384;

const HANDSHAKE_RECORD = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const HOST_NAME = 0;
/** Fatal, access_denied (RFC 8446 §6): what a client's error message then says. */
export const ACCESS_DENIED_ALERT = Buffer.from("15030100020231", "hex");

export type Hello =
  /** Not all of it is here yet. */
  | { state: "incomplete" }
  /** No TLS, or one that breaks its own rules. */
  | { state: "malformed" }
  /** `serverName` as it was sent; null where the hello names none. */
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

/** The first handshake message, put together from its records; undefined while it is not whole. */
function joinRecords(bytes: Buffer): Buffer | undefined {
  const parts: Buffer[] = [];
  let have = 0;
  for (let at = 0; at < bytes.length;) {
    if (bytes[at] !== HANDSHAKE_RECORD) throw new RangeError("not a handshake record");
    if (at + 1 < bytes.length && bytes[at + 1] !== 3) throw new RangeError("not TLS");
    if (at + 5 > bytes.length) return undefined;
    const length = bytes.readUInt16BE(at + 3);
    if (length === 0 || length > MAX_HELLO_BYTES) throw new RangeError("a record of an impossible length");
    const part = bytes.subarray(at + 5, at + 5 + length);
    parts.push(part);
    have += part.length;
    at += 5 + length;

    const joined = parts.length === 1 ? part : Buffer.concat(parts);
    if (joined[0] !== undefined && joined[0] !== CLIENT_HELLO) throw new RangeError("not a hello");
    if (have < 4) continue;
    const whole = 4 + joined.readUIntBE(1, 3);
    if (whole > MAX_HELLO_BYTES) throw new RangeError("a hello of an impossible length");
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
    // Two would let us read one and the server the other.
    if (found !== null) throw new RangeError("two server names");
    const names = extension.block(2);
    if (!extension.isAtEnd || names.number(1) !== HOST_NAME) throw new RangeError("an unknown kind of name");
    found = names.block(2).rest().toString("latin1");
    if (!names.isAtEnd) throw new RangeError("two server names");
  }
  return found;
}

/** Takes fields off the front; a field that is not all there is a RangeError. */
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

  /** What follows a length of that many bytes. */
  block(lengthWidth: 1 | 2): Reader {
    return new Reader(this.#take(this.number(lengthWidth)));
  }

  rest(): Buffer {
    return this.#take(this.#bytes.length - this.#at);
  }

  #take(count: number): Buffer {
    const end = this.#at + count;
    if (end > this.#bytes.length) throw new RangeError("a field ends after the message");
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }
}
