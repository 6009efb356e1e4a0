/**
 * When a process that ended unasked is begun again. The first time after a second, then after twice as long each time,
 * at most a minute: an app that cannot run costs a start a minute and comes back by itself once what it needs is there.
 * After five ends that followed each other closely it counts as crashed, which is said once.
 */
export const crashLoopAt = 5;
/** One that ran for this long had come up well: counting begins anew. */
const wellAfterMs = 5 * 60_000;
const firstDelayMs = 1_000;
const longestDelayMs = 60_000;

/** Ends in a row, the one that just happened included. */
export function crashesInRow(before: number, ranMs: number): number {
  return ranMs >= wellAfterMs ? 1 : before + 1;
}

export function restartDelayMs(inRow: number): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** Math.min(16, Math.max(0, inRow - 1)));
}
