/**
 * What a function's process says, line by line: records of the program that serves the handler, and plain text of
 * everything else. A record is a machine's word like any other; what it may claim is its own level and request.
 */
import type { LogLine } from "#machines/host/log-rings.ts";
import type { ReadLine } from "../apps/output/output.ts";

/** What the program says of itself. */
export type Event = { kind: "ready" } | { kind: "failed" } | { kind: "waits"; isWaiting: boolean };

const separator = "\u001e";
const levels = ["debug", "info", "warn", "error"] as const;
type Level = (typeof levels)[number];
const requestId = /^[A-Za-z0-9._-]{1,128}$/;

/** Reads lines for a log, and hands on what is none. */
export function readerOf(heard: (event: Event) => void, said: (text: string) => void): ReadLine {
  return (line) => {
    const record = line.text.startsWith(separator) ? parse(line.text.slice(1)) : undefined;
    if (record === undefined) {
      said(line.text);
      return line;
    }
    if ("kind" in record) {
      heard(record);
      return undefined;
    }
    said(record.text);
    return record;
  };
}

/** Undefined where it is no record after all. */
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
