import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, test } from "vitest";
import { RuntimeError } from "../driver.ts";
import { FrameDecoder, HEADER_BYTES, encodeFrame } from "./frames.ts";
import {
  REPLIES,
  REQUESTS,
  decodeFields,
  encodeFields,
  encodeRequest,
  parseBlocker,
  parseChange,
  parseChunk,
  parseCommand,
  parseDone,
  parseEntry,
  parseError,
  parseExit,
  parseMeta,
  parsePong,
  parseStarted,
  requirePath,
  toEntries,
} from "./protocol.ts";
import type { Fields } from "./protocol.ts";

interface Vector {
  name: string;
  type: string;
  hex: string;
  fields?: Record<string, unknown>;
  payload?: string;
  refused?: string;
  decodeOnly?: boolean;
}

function load(file: string): Vector[] {
  return JSON.parse(
    readFileSync(new URL(`../../../guest/vectors/${file}`, import.meta.url), "utf8"),
  ) as Vector[];
}

/** Returns the fields of a vector. In a vector, raw bytes are `{bytes: hex}`, and a list of one entry is a list. */
function toFields(fields: Record<string, unknown>): Fields {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => {
      const raw = (value as { bytes?: string }).bytes;
      return [name, raw === undefined ? value : Buffer.from(raw, "hex")];
    }),
  ) as Fields;
}

const requests = load("requests.json").filter((vector) => !vector.refused);
const replies = load("replies.json");

test.each(requests)("matches the request vector: $name", ({ type, hex, fields, decodeOnly }) => {
  const wanted = toFields(fields ?? {});
  const code = REQUESTS[type as keyof typeof REQUESTS];
  if (!decodeOnly) expect(encodeRequest(code, wanted).toString("hex")).toBe(hex);
  expect(decodeFields(Buffer.from(hex, "hex").subarray(HEADER_BYTES))).toEqual(wanted);
});

test.each(replies)("matches the reply vector: $name", ({ type, hex, fields, payload }) => {
  const code = REPLIES[type as keyof typeof REPLIES];
  const decoder = new FrameDecoder();
  decoder.push(Buffer.from(hex, "hex"));
  const frame = decoder.next();
  expect(frame?.type).toBe(code);
  if (payload !== undefined) return expect(frame?.payload.toString("hex")).toBe(payload);
  const wanted = toFields(fields ?? {});
  expect(decodeFields(frame?.payload ?? Buffer.alloc(0))).toEqual(wanted);
  expect(encodeFrame(code, encodeFields(wanted)).toString("hex")).toBe(hex);
});

function payloadOf(name: string): Buffer {
  const vector = replies.find((reply) => reply.name === name);
  return Buffer.from(vector?.hex ?? "", "hex").subarray(HEADER_BYTES);
}

test("parses replies into typed values", () => {
  expect(parsePong(payloadOf("pong"))).toEqual({ version: 1, build: "0123456789ab" });
  expect(parseStarted(payloadOf("started"))).toEqual({ pid: 4711 });
  expect(parseExit(payloadOf("exit with a code"))).toEqual({
    code: 3,
    signal: null,
    timedOut: false,
    outOfMemory: false,
    durationUs: 1234567,
  });
  expect(parseExit(payloadOf("exit out of memory"))).toMatchObject({ signal: 9, outOfMemory: true });
  expect(parseExit(payloadOf("exit by a signal"))).toMatchObject({ code: null, signal: 9, timedOut: true });
  expect(parseMeta(payloadOf("meta"))).toEqual({
    sizeBytes: 5_000_000_000,
    mode: 0o644,
    modifiedAt: new Date(1_700_000_000_123),
    isDir: false,
    uid: null,
    gid: null,
    linkTarget: null,
  });
  expect(parseEntry(payloadOf("entry"))).toMatchObject({ name: "grüße.txt", isDir: true });
  expect(parseDone(payloadOf("done"))).toEqual({ sizeBytes: 16 * 1024 * 1024 });
  expect(parseCommand(payloadOf("a running command"))).toMatchObject({
    status: "running",
    exitCode: null,
    endedAt: null,
  });
  expect(parseCommand(payloadOf("a finished command"))).toMatchObject({
    exitCode: 0,
    droppedBytes: 4_000_000,
  });
  expect(parseChunk(payloadOf("chunk"))).toEqual({
    stream: "stderr",
    offset: 2 ** 32,
    data: Buffer.from("00ff0a", "hex"),
  });
  expect(parseBlocker(payloadOf("blocker"))).toMatchObject({ comm: "python3", reason: "deleted_file" });
  expect(parseChange(payloadOf("change"))).toEqual({
    kind: "moved",
    path: "/workspace/new",
    from: "/workspace/old",
    isDir: false,
  });
  expect(parseChange(payloadOf("overflow"))).toEqual({ kind: "overflow" });
  expect(parseError(payloadOf("error"))).toMatchObject({ kind: "path_not_found" });
});

test("accepts only known error codes, with a message of one line without control characters", () => {
  const say = (code: string, message: string) => parseError(encodeFields({ code, message }));
  expect(say("stale_generation", "x").kind).toBe("guest_protocol");
  expect(say("constructor", "x").kind).toBe("guest_protocol");
  expect(say("busy", "x").kind).toBe("no_capacity");
  expect(say("failed", "a\n\u001b[31mb").message).toBe("a  [31mb");
  expect(say("failed", "x".repeat(100_000)).message.length).toBeLessThanOrEqual(1000);
});

test("rejects an exit without exactly one of code and signal, and an invalid date", () => {
  const both = { exit_code: 0, signal: 9, timed_out: 0, duration_us: 1 };
  expect(() => parseExit(encodeFields(both))).toThrow(RuntimeError);
  expect(() => parseExit(encodeFields({ timed_out: 0, duration_us: 1 }))).toThrow(RuntimeError);
  expect(() => parseExit(encodeFields({ ...both, signal: undefined, exit_code: 4000 }))).toThrow(
    RuntimeError,
  );
  const meta = { size: 1, mode: 1, modified_ms: Number.MAX_SAFE_INTEGER, is_dir: 0 };
  expect(() => parseMeta(encodeFields(meta))).toThrow(RuntimeError);
});

const parsers = [
  parseBlocker,
  parseChange,
  parseChunk,
  parseCommand,
  parseDone,
  parseEntry,
  parseError,
  parseExit,
  parseMeta,
  parsePong,
  parseStarted,
];
const payloads = replies.map((reply) => Buffer.from(reply.hex, "hex").subarray(HEADER_BYTES));

test("parses a damaged reply into a value or a protocol error", () => {
  const damage = fc.array(fc.tuple(fc.nat(), fc.nat({ max: 255 })), { maxLength: 4 });
  fc.assert(
    fc.property(
      fc.oneof(fc.constantFrom(...payloads), fc.uint8Array()),
      damage,
      fc.nat(),
      fc.constantFrom(...parsers),
      (bytes, changes, length, parser) => {
        const payload = Buffer.from(bytes).subarray(0, length % (bytes.length + 1) || undefined);
        for (const [at, value] of changes) if (payload.length > 0) payload[at % payload.length] = value;
        try {
          parser(payload);
        } catch (error) {
          expect(error).toMatchObject({ kind: "guest_protocol" });
        }
      },
    ),
    { numRuns: 2000 },
  );
});

test("rejects invalid request fields before a byte is sent", () => {
  expect(() => requirePath("a")).toThrow(/absolute/);
  expect(() => requirePath("/a\0b")).toThrow(/NUL/);
  expect(() => requirePath("/" + "é".repeat(2048))).toThrow(/4095/);
  expect(() => toEntries({ "A=B": "c" })).toThrow(RuntimeError);
  expect(() => toEntries({ A: "b\0" })).toThrow(RuntimeError);
  expect(() => encodeRequest(REQUESTS.SPAWN, { shell: "x".repeat(1024 * 1024) })).toThrow(/1 MiB/);
});
