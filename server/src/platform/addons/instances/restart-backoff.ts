/**
 * When a database that ended is begun again: at once, then after twice as long each time, at most half a minute. One
 * that ran for a minute had come up well, and counting begins anew.
 */
const wellAfterMs = 60_000;
const firstDelayMs = 100;
const longestDelayMs = 30_000;
/** So many ends in a row are worth somebody's attention. */
export const tellAfter = 4;

/** Ends in a row, the one that just happened included. */
export function failuresInRow(before: number, ranMs: number): number {
  return ranMs >= wellAfterMs ? 1 : before + 1;
}

export function restartDelayMs(inRow: number): number {
  return Math.min(longestDelayMs, firstDelayMs * 2 ** Math.min(16, Math.max(0, inRow - 1)));
}
