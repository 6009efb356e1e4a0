/**
 * Which trace a run is part of (W3C Trace Context). Ids are made of the run's own, or are the caller's: so whichever
 * process goes on with a run goes on in the same trace, and nothing has to be kept for it but what a caller sent.
 */
import { createHash } from "node:crypto";

export interface TraceContext {
  /** 32 hexadecimal digits. */
  traceId: string;
  /** 16 of them: the caller's span; null where the trace begins here. */
  parentId: string | null;
  /** Where a caller says that nobody looks, nothing is sent. */
  isSampled: boolean;
}

const pattern = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-|$)/;

/** A caller's header as it is kept, in version 00; undefined where it is none, or not to be understood. */
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

/** Of whatever has a name of its own. */
export function spanIdOf(name: string): string {
  return digits(`span ${name}`, 16);
}

export function toTraceparent({ traceId, isSampled }: TraceContext, spanId: string): string {
  return `00-${traceId}-${spanId}-${isSampled ? "01" : "00"}`;
}

/** Of a hash: never all zeros. */
function digits(text: string, count: number): string {
  return createHash("sha256").update(text).digest("hex").slice(0, count);
}
