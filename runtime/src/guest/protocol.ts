/**
 * Messages between host and guest: typed values ↔ payload bytes, as specified in guest/PROTOCOL.md. Pure.
 *
 * A payload that is not raw data is a list of fields, `u8 tag | u32 LE length | bytes`. Numbers are u64 LE.
 * A table maps tags to fields, so a message here is a plain object with the protocol's own field names.
 * Replies are parsed once, strictly, into the types below; no other code reads unparsed data of a guest.
 */
import { RuntimeError } from "../driver.ts";
import type { CommandChunk, CommandRecord, FileChange, RuntimeErrorKind } from "../driver.ts";
import { MAX_REQUEST_BYTES, encodeFrame, protocolError } from "./frames.ts";

export const PROTOCOL_VERSION = 1;

export const REQUESTS = {
  PING: 0x01,
  CONFIGURE: 0x02,
  SPAWN: 0x03,
  SIGNAL: 0x04,
  LIMIT: 0x05,
  READ: 0x10,
  WRITE: 0x11,
  LIST: 0x12,
  STAT: 0x13,
  MKDIR: 0x14,
  MOVE: 0x15,
  REMOVE: 0x16,
  WATCH: 0x17,
  TUNNEL: 0x20,
  COMMAND_LIST: 0x30,
  COMMAND_GET: 0x31,
  COMMAND_LOGS: 0x32,
  COMMAND_KILL: 0x33,
  COMMAND_STDIN: 0x34,
  COMMAND_RESIZE: 0x35,
  BLOCKERS: 0x38,
} as const;

export const SENT = { STDIN: 0x40, STDIN_EOF: 0x41, UPLOAD: 0x43, UPLOAD_END: 0x44 } as const;

export const REPLIES = {
  PONG: 0x80,
  OK: 0x81,
  ERROR: 0x82,
  STARTED: 0x83,
  STDOUT: 0x84,
  STDERR: 0x85,
  EXIT: 0x86,
  META: 0x87,
  DATA: 0x88,
  END: 0x89,
  ENTRY: 0x8a,
  DONE: 0x8b,
  COMMAND: 0x8c,
  CHUNK: 0x8d,
  BLOCKER: 0x8e,
  CHANGE: 0x8f,
} as const;

type Kind = "number" | "text" | "bytes" | "texts";

/** Fields by tag. `texts` may be repeated. */
const FIELDS: Record<number, { name: string; kind: Kind }> = {
  1: { name: "path", kind: "text" },
  2: { name: "mode", kind: "number" },
  3: { name: "root", kind: "texts" },
  4: { name: "parents", kind: "number" },
  5: { name: "overwrite", kind: "number" },
  6: { name: "to", kind: "text" },
  7: { name: "max_bytes", kind: "number" },
  8: { name: "argv", kind: "texts" },
  9: { name: "shell", kind: "text" },
  10: { name: "cwd", kind: "text" },
  11: { name: "env", kind: "texts" },
  12: { name: "user", kind: "text" },
  13: { name: "timeout_ms", kind: "number" },
  14: { name: "kill_on_disconnect", kind: "number" },
  15: { name: "command_id", kind: "text" },
  16: { name: "tag", kind: "text" },
  17: { name: "port", kind: "number" },
  18: { name: "hostname", kind: "text" },
  19: { name: "offset", kind: "number" },
  20: { name: "limit", kind: "number" },
  21: { name: "follow", kind: "number" },
  22: { name: "data", kind: "bytes" },
  23: { name: "eof", kind: "number" },
  24: { name: "signal", kind: "number" },
  25: { name: "pid", kind: "number" },
  26: { name: "cols", kind: "number" },
  27: { name: "rows", kind: "number" },
  28: { name: "recursive", kind: "number" },
  29: { name: "memory", kind: "number" },
  31: { name: "cpus", kind: "number" },
  30: { name: "after", kind: "text" },
  32: { name: "version", kind: "number" },
  33: { name: "build", kind: "text" },
  34: { name: "code", kind: "text" },
  35: { name: "message", kind: "text" },
  36: { name: "exit_code", kind: "number" },
  37: { name: "timed_out", kind: "number" },
  38: { name: "duration_us", kind: "number" },
  39: { name: "size", kind: "number" },
  40: { name: "modified_ms", kind: "number" },
  41: { name: "is_dir", kind: "number" },
  42: { name: "name", kind: "text" },
  43: { name: "status", kind: "text" },
  44: { name: "started_ms", kind: "number" },
  45: { name: "ended_ms", kind: "number" },
  46: { name: "output_bytes", kind: "number" },
  47: { name: "stream", kind: "number" },
  48: { name: "dropped_bytes", kind: "number" },
  49: { name: "comm", kind: "text" },
  50: { name: "reason", kind: "text" },
  51: { name: "command_text", kind: "text" },
  52: { name: "kind", kind: "text" },
  53: { name: "from", kind: "text" },
  54: { name: "out_of_memory", kind: "number" },
  55: { name: "uid", kind: "number" },
  56: { name: "gid", kind: "number" },
  57: { name: "link_target", kind: "text" },
};

const TAGS = new Map(
  Object.entries(FIELDS).map(([tag, field]) => [field.name, { tag: Number(tag), ...field }]),
);

type Value = number | string | Buffer | string[];

/** Fields of a message by name. An undefined field is not sent. */
export type Fields = Record<string, Value | undefined>;

// ---- fields ↔ bytes

function encodeValue(kind: Kind, value: Value): Buffer[] {
  if (kind === "number") {
    const bytes = Buffer.allocUnsafe(8);
    bytes.writeBigUInt64LE(BigInt(value as number));
    return [bytes];
  }
  if (kind === "texts") return (value as string[]).map((text) => Buffer.from(text, "utf8"));
  return [kind === "bytes" ? (value as Buffer) : Buffer.from(value as string, "utf8")];
}

export function encodeFields(fields: Fields): Buffer {
  const parts: Buffer[] = [];
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue;
    const field = TAGS.get(name);
    if (!field) throw new Error(`no such field: ${name}`);
    for (const bytes of encodeValue(field.kind, value)) {
      const head = Buffer.allocUnsafe(5);
      head[0] = field.tag;
      head.writeUInt32LE(bytes.length, 1);
      parts.push(head, bytes);
    }
  }
  return Buffer.concat(parts);
}

function decodeValue(kind: Kind, bytes: Buffer): number | string | Buffer {
  if (kind === "bytes") return bytes;
  // Names and messages are bytes on Linux; bytes that are not UTF-8 become replacement characters.
  if (kind !== "number") return bytes.toString("utf8");
  if (bytes.length !== 8) throw protocolError("a number without 8 bytes");
  const value = bytes.readBigUInt64LE();
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw protocolError("a number is too large");
  return Number(value);
}

/** Decodes the fields of a payload. Unknown tags are skipped, because a newer guest may send more fields. */
export function decodeFields(payload: Buffer): Fields {
  const fields: Fields = {};
  for (let at = 0; at < payload.length;) {
    if (payload.length - at < 5) throw protocolError("a field is cut short");
    const length = payload.readUInt32LE(at + 1);
    if (length > payload.length - at - 5) throw protocolError("a field is longer than its frame");
    const field = FIELDS[payload[at] as number];
    const bytes = payload.subarray(at + 5, at + 5 + length);
    at += 5 + length;
    if (!field) continue;
    const value = decodeValue(field.kind, bytes);
    if (field.kind === "texts") ((fields[field.name] ??= []) as string[]).push(value as string);
    else fields[field.name] = value;
  }
  return fields;
}

// ---- requests

/** Returns a request's frame. Rejects a request of invalid form before a byte is sent. */
export function encodeRequest(type: number, fields: Fields): Buffer {
  const payload = encodeFields(fields);
  if (payload.length > MAX_REQUEST_BYTES)
    throw new RuntimeError("too_large", "the request is larger than 1 MiB");
  return encodeFrame(type, payload);
}

export function requirePath(path: string): string {
  if (!path.startsWith("/")) throw new RuntimeError("invalid_path", "the path must be absolute");
  if (path.includes("\0")) throw new RuntimeError("invalid_path", "the path holds a NUL byte");
  if (Buffer.byteLength(path) > 4095)
    throw new RuntimeError("invalid_path", "the path is longer than 4095 bytes");
  return path;
}

export function toEntries(env: Record<string, string>): string[] {
  return Object.entries(env).map(([name, value]) => {
    if (name === "" || /[=\0]/.test(name) || value.includes("\0"))
      throw new RuntimeError(
        "failed",
        "an environment variable's name contains = or NUL, or its value NUL; remove that character",
      );
    return `${name}=${value}`;
  });
}

// ---- replies

/** Error codes that a guest may use, and their kinds in the runtime. Any other code violates the protocol. */
const ERROR_KINDS: Record<string, RuntimeErrorKind> = {
  path_not_found: "path_not_found",
  is_directory: "is_directory",
  not_directory: "not_directory",
  exists: "exists",
  not_permitted: "not_permitted",
  invalid_path: "invalid_path",
  too_large: "too_large",
  disk_full: "disk_full",
  too_many_processes: "too_many_processes",
  exec_failed: "exec_failed",
  connection_refused: "connection_refused",
  not_found: "not_found",
  not_running: "not_running",
  guest_protocol: "guest_protocol",
  busy: "no_capacity",
  failed: "failed",
};

export function parseError(payload: Buffer): RuntimeError {
  const fields = decodeFields(payload);
  const word = text(fields, "code");
  const kind = Object.hasOwn(ERROR_KINDS, word) ? ERROR_KINDS[word] : undefined;
  if (!kind) return protocolError("an unknown error code");
  // A client may read the message: it is one line, bounded, without control characters.
  const message = text(fields, "message")
    .slice(0, 1000)
    .replaceAll(/\p{Cc}/gu, " ");
  return new RuntimeError(kind, message);
}

export interface Stat {
  sizeBytes: number;
  mode: number;
  modifiedAt: Date;
  isDir: boolean;
  /** Null for an older guest, in a machine that an older server started or paused. */
  uid: number | null;
  gid: number | null;
  linkTarget: string | null;
}

/** Obstacle to a checkpoint. */
export interface CheckpointBlocker {
  pid: number;
  comm: string;
  reason: string;
  path: string;
}

function number(fields: Fields, name: string, max = Number.MAX_SAFE_INTEGER): number {
  const value = fields[name];
  if (typeof value !== "number" || value > max) throw protocolError(`${name} is missing or out of range`);
  return value;
}

function text(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value !== "string") throw protocolError(`${name} is missing`);
  return value;
}

function optional(fields: Fields, name: string, max: number): number | null {
  return fields[name] === undefined ? null : number(fields, name, max);
}

// The last instant that a Date can represent. A later date is invalid, and toISOString throws on it in other code.
const MAX_DATE_MS = 8.64e15;

const date = (fields: Fields, name: string): Date => new Date(number(fields, name, MAX_DATE_MS));

export function parsePong(payload: Buffer): { version: number; build: string } {
  const fields = decodeFields(payload);
  return { version: number(fields, "version"), build: text(fields, "build").slice(0, 100) };
}

export function parseStarted(payload: Buffer): { pid: number } {
  return { pid: number(decodeFields(payload), "pid", 2 ** 31 - 1) };
}

export function parseExit(payload: Buffer): {
  code: number | null;
  signal: number | null;
  timedOut: boolean;
  outOfMemory: boolean;
  durationUs: number;
} {
  const fields = decodeFields(payload);
  const code = optional(fields, "exit_code", 255);
  const signal = optional(fields, "signal", 127);
  if ((code === null) === (signal === null))
    throw protocolError("an exit has neither code nor signal, or both");
  return {
    code,
    signal,
    timedOut: number(fields, "timed_out") !== 0,
    outOfMemory: isOutOfMemory(fields),
    durationUs: number(fields, "duration_us"),
  };
}

/** Returns whether memory ran out. The field is absent if false, and in replies of older guests. */
function isOutOfMemory(fields: Fields): boolean {
  return fields["out_of_memory"] !== undefined && number(fields, "out_of_memory") !== 0;
}

function toStat(fields: Fields): Stat {
  return {
    sizeBytes: number(fields, "size"),
    mode: number(fields, "mode", 0o7777),
    modifiedAt: date(fields, "modified_ms"),
    isDir: number(fields, "is_dir") !== 0,
    uid: optional(fields, "uid", 2 ** 32 - 1),
    gid: optional(fields, "gid", 2 ** 32 - 1),
    linkTarget: fields["link_target"] === undefined ? null : text(fields, "link_target"),
  };
}

export function parseMeta(payload: Buffer): Stat {
  return toStat(decodeFields(payload));
}

export function parseEntry(payload: Buffer): Stat & { name: string } {
  const fields = decodeFields(payload);
  return { name: text(fields, "name"), ...toStat(fields) };
}

export function parseDone(payload: Buffer): { sizeBytes: number } {
  return { sizeBytes: number(decodeFields(payload), "size") };
}

export function parseCommand(payload: Buffer): CommandRecord {
  const fields = decodeFields(payload);
  const status = text(fields, "status");
  if (status !== "running" && status !== "exited" && status !== "killed")
    throw protocolError("an unknown status");
  return {
    id: text(fields, "command_id"),
    tag: text(fields, "tag"),
    text: text(fields, "command_text"),
    status,
    pid: number(fields, "pid"),
    exitCode: optional(fields, "exit_code", 255),
    signal: optional(fields, "signal", 127),
    timedOut: number(fields, "timed_out") !== 0,
    outOfMemory: isOutOfMemory(fields),
    startedAt: date(fields, "started_ms"),
    endedAt: fields["ended_ms"] === undefined ? null : date(fields, "ended_ms"),
    outputBytes: number(fields, "output_bytes"),
    droppedBytes: number(fields, "dropped_bytes"),
    terminal:
      fields["cols"] === undefined
        ? null
        : { cols: number(fields, "cols", 0xffff), rows: number(fields, "rows", 0xffff) },
  };
}

export function parseChunk(payload: Buffer): CommandChunk {
  const fields = decodeFields(payload);
  const stream = number(fields, "stream");
  const data = fields["data"];
  if ((stream !== 1 && stream !== 2) || !Buffer.isBuffer(data))
    throw protocolError("a chunk without data or stream");
  return { stream: stream === 1 ? "stdout" : "stderr", offset: number(fields, "offset"), data };
}

export function parseChange(payload: Buffer): FileChange {
  const fields = decodeFields(payload);
  const kind = text(fields, "kind");
  if (kind === "overflow") return { kind };
  const change = { path: text(fields, "path"), isDir: number(fields, "is_dir") !== 0 };
  if (kind === "moved") return { kind, ...change, from: text(fields, "from") };
  if (kind !== "created" && kind !== "modified" && kind !== "deleted")
    throw protocolError("an unknown kind of change");
  return { kind, ...change };
}

export function parseBlocker(payload: Buffer): CheckpointBlocker {
  const fields = decodeFields(payload);
  return {
    pid: number(fields, "pid"),
    comm: text(fields, "comm"),
    reason: text(fields, "reason"),
    path: text(fields, "path"),
  };
}
