/**
 * Delays restarts of a process that ends by itself: one second first, then twice the previous delay, at most a minute.
 * An app that cannot run costs one start a minute, and recovers by itself once the cause is fixed. After five ends in
 * short succession the app counts as crashed, and its workspace gets one notification.
 */
export const crashLoopAt = 5;
/** Time after which a running process resets the count. */
const wellAfterMs = 5 * 60_000;
const firstDelayMs = 1_000;
const longestDelayMs = 60_000;

/** Returns the number of ends in a row, including the current one. */
export function crashesInRow(before: number, ranMs: number): number {
  return ranMs >= wellAfterMs ? 1 : before + 1;
}

export function restartDelayMs(inRow: number): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** Math.min(16, Math.max(0, inRow - 1)));
}
