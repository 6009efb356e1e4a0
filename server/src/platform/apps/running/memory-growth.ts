/**
 * Computes an app's memory limit. The first limit is the size's base. The limit doubles, up to the burst limit, while
 * the app uses most of it. The limit is lowered after a period of low use.
 */
import type { Extent } from "../tables.ts";

const mib = 1024 ** 2;
const upAt = 0.85;
const downAt = 0.5;
const downAfterMs = 60_000;

/** Returns the next limit in bytes. `calmForMs` is the time for which the app used less than half of its limit. */
export function limitFor(size: Extent, limitBytes: number, usedBytes: number, calmForMs: number): number {
  const base = size.memoryMb * mib;
  const ceiling = Math.max(base, size.burstMb * mib);
  if (usedBytes > limitBytes * upAt) return Math.min(ceiling, limitBytes * 2);
  if (calmForMs >= downAfterMs) return Math.max(base, Math.floor(limitBytes / 2));
  return limitBytes;
}

export function isCalm(limitBytes: number, usedBytes: number): boolean {
  return usedBytes < limitBytes * downAt;
}
