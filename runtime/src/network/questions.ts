/** The parts of DNS that a local zone needs for its answers (RFC 1035 §4). Pure. */

export const HEADER_BYTES = 12;
const RESPONSE_BIT = 0x80;
const AUTHORITATIVE_BIT = 0x04;
const RECURSION_WANTED_BIT = 0x01;
const RECURSION_AVAILABLE_BIT = 0x80;
const TYPE_A = 1;
const CLASS_IN = 1;
/**
 * Lifetime of an answer. A program that caches a name for longer could use an address that another service has by then.
 */
const TTL_SECONDS = 5;
const MAX_NAME_BYTES = 255;

export const FORMAT_ERROR = 1;
export const SERVER_FAILURE = 2;
const NO_SUCH_NAME = 3;
export const REFUSED = 5;

export interface Question {
  /** Name of the question in lower case, without the final dot. */
  name: string;
  isInternal: boolean;
  /** True for a question for an IPv4 address record. */
  isForAddress: boolean;
  /** Offset of the question's end in the message. */
  end: number;
}

export function isResponse(message: Buffer): boolean {
  return ((message[2] ?? 0) & RESPONSE_BIT) !== 0;
}

/** Parses the one question of an ordinary query. Returns undefined for every other message. */
export function parseQuestion(message: Buffer): Question | undefined {
  const isQuery = message.length >= HEADER_BYTES && ((message[2] ?? 0) & 0xf8) === 0;
  if (!isQuery || message.readUInt16BE(4) !== 1) return undefined;
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (let length = message[at]; length !== 0; length = message[at]) {
    // A value above 63 is a pointer, not a length, and the first name of a message has nothing to point at.
    if (length === undefined || length > 63 || at - HEADER_BYTES > MAX_NAME_BYTES) return undefined;
    labels.push(message.toString("latin1", at + 1, at + 1 + length).toLowerCase());
    at += 1 + length;
  }
  const end = at + 5;
  if (end > message.length) return undefined;
  return {
    name: labels.join("."),
    isInternal: labels.at(-1) === "internal",
    isForAddress: message.readUInt16BE(at + 1) === TYPE_A && message.readUInt16BE(at + 3) === CLASS_IN,
    end,
  };
}

/**
 * Returns the answer to a question for a local name: its address, an empty answer for another record type, or "no such
 * name".
 */
export function answerInternal(message: Buffer, question: Question, address: string | undefined): Buffer {
  const isAnswered = address !== undefined && question.isForAddress;
  const header = Buffer.alloc(HEADER_BYTES);
  message.copy(header, 0, 0, 2);
  header[2] = RESPONSE_BIT | AUTHORITATIVE_BIT | ((message[2] ?? 0) & RECURSION_WANTED_BIT);
  header[3] = RECURSION_AVAILABLE_BIT | (address === undefined ? NO_SUCH_NAME : 0);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(isAnswered ? 1 : 0, 6);
  return Buffer.concat([
    header,
    // The question is copied with its letter case: a resolver recognises its own question by the case.
    message.subarray(HEADER_BYTES, question.end),
    ...(isAnswered ? [addressRecord(address)] : []),
  ]);
}

/** Returns an address record of the question's name, which the record references by a pointer. */
function addressRecord(address: string): Buffer {
  const record = Buffer.from("c00c00010001000000000004", "hex");
  record.writeUInt32BE(TTL_SECONDS, 6);
  return Buffer.concat([record, Buffer.from(address.split(".").map(Number))]);
}

/** Returns the question with an error code, so that a resolver in the machine fails at once instead of waiting. */
export function errorAnswer(message: Buffer, code: number): Buffer {
  const answer = Buffer.from(message);
  answer[2] = (answer[2] ?? 0) | RESPONSE_BIT;
  answer[3] = ((answer[3] ?? 0) & 0xf0) | code;
  return answer;
}
