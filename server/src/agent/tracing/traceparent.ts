/**
 * The trace of a run (W3C Trace Context). Ids are derived from the run's id, or come from the caller. So every process
 * that continues a run continues its trace, and only the caller's header is stored.
 */
import { createHash } from "node:crypto";

export interface TraceContext {
  /** Id of the trace: 32 hexadecimal digits. */
  traceId: string;
  /** Id of the caller's span: 16 hexadecimal digits. Null if the trace starts with the run. */
  parentId: string | null;
  /** False if the caller does not sample the trace. Then no span is sent. */
  isSampled: boolean;
}

const pattern = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-|$)/;

/** Normalizes a caller's header to version 00. Returns undefined if the header is missing or invalid. */
export function parseTraceparent(header: string | string[] | undefined): string | undefined {
  if (typeof header !== "string" || header.length > 512) return undefined;
  const [, version, traceId = "", parentId = "", flags, rest] = pattern.exec(header.trim()) ?? [];
  if (version === undefined || version === "ff" || (version === "00" && rest !== "")) return undefined;
  if (/^0+$/.test(traceId) || /^0+$/.test(parentId)) return undefined;
  return `00-${traceId}-${parentId}-${flags}`;
}

export function traceOf(run: { id: string; traceparent: string | null }): TraceContext {
  const [, , traceId, parentId, flags] = pattern.exec(run.traceparent ?? "") ?? [];
  if (traceId === undefined || parentId === undefined || flags === undefined)
    return { traceId: digits(`trace ${run.id}`, 32), parentId: null, isSampled: true };
  return { traceId, parentId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

/** Derives a span id from a unique name. */
export function spanIdOf(name: string): string {
  return digits(`span ${name}`, 16);
}

export function toTraceparent({ traceId, isSampled }: TraceContext, spanId: string): string {
  return `00-${traceId}-${spanId}-${isSampled ? "01" : "00"}`;
}

/** Returns digits of a hash, at least one of which is not zero. */
function digits(text: string, count: number): string {
  return createHash("sha256").update(text).digest("hex").slice(0, count);
}
