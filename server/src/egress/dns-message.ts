/** The little of DNS that a resolver for A records speaks (RFC 1035 §4), pure. */

export interface Question {
  id: number;
  /** Lower case, without the last dot. */
  name: string;
  /** 1 is A. */
  type: number;
  /** The question as it was asked, to be repeated in the answer. */
  bytes: Buffer;
  recursionDesired: boolean;
}

export const TYPE_A = 1;
const CLASS_INTERNET = 1;
const HEADER_BYTES = 12;

export const CODES = {
  ok: 0,
  malformed: 1,
  failed: 2,
  noSuchName: 3,
  notImplemented: 4,
  refused: 5,
} as const;
export type Code = keyof typeof CODES;

/** A program inside may ask again this soon; names of package mirrors move between machines within minutes. */
const TTL_SECONDS = 30;
/** As many as fit a datagram of 512 bytes beside the longest name, so that no answer is ever cut off. */
const MAX_ADDRESSES = 14;

/** Null where there is nothing that could be answered; a code where all there is to say is that. */
export function readQuestion(message: Buffer): Question | Code | null {
  if (message.length < HEADER_BYTES || (message.readUInt16BE(2) & 0x8000) !== 0) return null;
  const flags = message.readUInt16BE(2);
  if (((flags >> 11) & 0xf) !== 0) return "notImplemented";
  if (message.readUInt16BE(4) !== 1) return "malformed";
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (;;) {
    const length = message[at];
    // Above 63 it is a pointer, which a question has no use for.
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
    // A dot within a label would make one name look like another.
    name: labels.some((label) => label.includes(".")) ? "" : labels.join(".").toLowerCase(),
    type: message.readUInt16BE(at + 1),
    bytes: message.subarray(HEADER_BYTES, end),
    recursionDesired: (flags & 0x0100) !== 0,
  };
}

export function writeAnswer(question: Question, code: Code, addresses: readonly string[] = []): Buffer {
  const records = addresses.slice(0, MAX_ADDRESSES).map((address) => {
    const record = Buffer.alloc(16);
    // The name is the question's, at byte 12.
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

/** To a message that could not be read as far as its question. */
export function writeRefusal(message: Buffer, code: Code): Buffer {
  return header(message.readUInt16BE(0), code, (message.readUInt16BE(2) & 0x0100) !== 0);
}

function header(id: number, code: Code, recursionDesired: boolean): Buffer {
  const head = Buffer.alloc(HEADER_BYTES);
  head.writeUInt16BE(id, 0);
  // An answer; recursion is available.
  head.writeUInt16BE(0x8080 | (recursionDesired ? 0x0100 : 0) | CODES[code], 2);
  return head;
}
