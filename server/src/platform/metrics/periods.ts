/** Periods of metrics. */

/** Length of each period, and of a point in its series, in minutes. */
export const periods = {
  "5m": { minutes: 5, step: 1 },
  "15m": { minutes: 15, step: 1 },
  "1h": { minutes: 60, step: 1 },
  "6h": { minutes: 360, step: 5 },
  "24h": { minutes: 1440, step: 15 },
} as const;
export type Period = keyof typeof periods;
export const periodNames = Object.keys(periods) as [Period, ...Period[]];
