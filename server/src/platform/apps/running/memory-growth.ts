/**
 * What an app's memory is limited to. It has its size's own at first, gets twice as much when it uses most of it, up to
 * what the size may grow to, and gives it back once it has needed half of it or less for a while.
 */
import type { Extent } from "../tables.ts";

const mib = 1024 ** 2;
const upAt = 0.85;
const downAt = 0.5;
const downAfterMs = 60_000;

/** The limit it should have; `calmForMs`: how long it has used less than half of what it has. */
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
