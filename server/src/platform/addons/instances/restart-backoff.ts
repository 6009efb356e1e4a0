/**
 * Backoff of a database's restarts: a tenth of a second first, then doubling up to half a minute. A run of
 * `wellAfterMs` counts as a success and resets the count.
 */
const wellAfterMs = 60_000;
const firstDelayMs = 100;
const longestDelayMs = 30_000;
/** Failures in a row after which the owner is notified. */
export const notifyAfter = 4;

/** Returns the number of failures in a row, including the current one. */
export function failuresInRow(before: number, ranMs: number): number {
  return ranMs >= wellAfterMs ? 1 : before + 1;
}

export function restartDelayMs(inRow: number): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** Math.min(16, Math.max(0, inRow - 1)));
}
