/**
 * Parses the output of a function's process: records of the wrapper program, and plain text. Records are untrusted, so
 * only level and request id are used.
 */
import type { LogLine } from "#machines/host/log-rings.ts";
import type { ReadLine } from "../apps/output/output.ts";

/** An event in the wrapper program's records. */
export type Event = { kind: "ready" } | { kind: "failed" } | { kind: "waits"; isWaiting: boolean };

const separator = "\u001e";
const levels = ["debug", "info", "warn", "error"] as const;
type Level = (typeof levels)[number];
const requestId = /^[A-Za-z0-9._-]{1,128}$/;

/**
 * Returns a parser of output lines. The parser passes events and texts to the callbacks, and returns the lines to log.
 */
export function makeOutputReader(onEvent: (event: Event) => void, onText: (text: string) => void): ReadLine {
  return (line) => {
    const record = line.text.startsWith(separator) ? parse(line.text.slice(1)) : undefined;
    if (record === undefined) {
      onText(line.text);
      return line;
    }
    if ("kind" in record) {
      onEvent(record);
      return undefined;
    }
    onText(record.text);
    return record;
  };
}

/** Parses a record. Returns undefined for text that is not a record. */
function parse(json: string): Event | (Pick<LogLine, "stream" | "text"> & Partial<LogLine>) | undefined {
  let record: { k?: unknown; n?: unknown; l?: unknown; r?: unknown; t?: unknown };
  try {
    record = JSON.parse(json) as typeof record;
  } catch {
    return undefined;
  }
  if (record === null || typeof record !== "object") return undefined;
  if (record.k === "ready" || record.k === "failed") return { kind: record.k };
  if (record.k === "wait") return { kind: "waits", isWaiting: record.n === 1 };
  if (typeof record.t !== "string") return undefined;
  const level: Level = levels.find((known) => known === record.l) ?? "info";
  return {
    stream: level === "warn" || level === "error" ? "stderr" : "stdout",
    text: record.t,
    level,
    ...(typeof record.r === "string" && requestId.test(record.r) ? { request_id: record.r } : {}),
  };
}
