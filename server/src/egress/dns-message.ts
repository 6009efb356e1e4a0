/** The part of DNS that a resolver for A records needs (RFC 1035 §4), as pure functions. */

export interface Question {
  id: number;
  /** In lower case, without the final dot. */
  name: string;
  /** Record type of the query; 1 is A. */
  type: number;
  /** Bytes of the question, which the response repeats. */
  bytes: Buffer;
  recursionDesired: boolean;
}

export const TYPE_A = 1;
const CLASS_INTERNET = 1;
const HEADER_BYTES = 12;

const CODES = {
  ok: 0,
  malformed: 1,
  failed: 2,
  noSuchName: 3,
  notImplemented: 4,
  refused: 5,
} as const;
export type Code = keyof typeof CODES;

/**
 * TTL of responses, in seconds. The TTL is short, because names of package mirrors move between machines within
 * minutes.
 */
const TTL_SECONDS = 30;
/**
 * Maximum of addresses in a response: these fit a datagram of 512 bytes even with the longest name, so that no response
 * is truncated.
 */
const MAX_ADDRESSES = 14;

/** Reads the question of a message. Null if the message gets no response. A code if it gets only an error response. */
export function readQuestion(message: Buffer): Question | Code | null {
  if (message.length < HEADER_BYTES || (message.readUInt16BE(2) & 0x8000) !== 0) return null;
  const flags = message.readUInt16BE(2);
  if (((flags >> 11) & 0xf) !== 0) return "notImplemented";
  if (message.readUInt16BE(4) !== 1) return "malformed";
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (;;) {
    const length = message[at];
    // A length above 63 is a compression pointer, which a question does not need.
    if (length === undefined || length > 63 || at - HEADER_BYTES + length > 254) return "malformed";
    if (length === 0) break;
    if (at + 1 + length > message.length) return "malformed";
    labels.push(message.toString("latin1", at + 1, at + 1 + length));
    at += 1 + length;
  }
  const end = at + 5;
  if (end > message.length) return "malformed";
  if (message.readUInt16BE(at + 3) !== CLASS_INTERNET) return "refused";
  return {
    id: message.readUInt16BE(0),
    // A dot within a label would make two different names equal.
    name: labels.some((label) => label.includes(".")) ? "" : labels.join(".").toLowerCase(),
    type: message.readUInt16BE(at + 1),
    bytes: message.subarray(HEADER_BYTES, end),
    recursionDesired: (flags & 0x0100) !== 0,
  };
}

export function writeResponse(question: Question, code: Code, addresses: readonly string[] = []): Buffer {
  const records = addresses.slice(0, MAX_ADDRESSES).map((address) => {
    const record = Buffer.alloc(16);
    // A pointer to the question's name, at byte 12.
    record.writeUInt16BE(0xc00c, 0);
    record.writeUInt16BE(TYPE_A, 2);
    record.writeUInt16BE(CLASS_INTERNET, 4);
    record.writeUInt32BE(TTL_SECONDS, 6);
    record.writeUInt16BE(4, 10);
    record.set(address.split(".").map(Number), 12);
    return record;
  });
  const head = header(question.id, code, question.recursionDesired);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(records.length, 6);
  return Buffer.concat([head, question.bytes, ...records]);
}

/** Builds the error response to a message whose question could not be read. */
export function writeError(message: Buffer, code: Code): Buffer {
  return header(message.readUInt16BE(0), code, (message.readUInt16BE(2) & 0x0100) !== 0);
}

function header(id: number, code: Code, recursionDesired: boolean): Buffer {
  const head = Buffer.alloc(HEADER_BYTES);
  head.writeUInt16BE(id, 0);
  // Flags: response, recursion available.
  head.writeUInt16BE(0x8080 | (recursionDesired ? 0x0100 : 0) | CODES[code], 2);
  return head;
}
