/**
 * What of a schedule is due. A server that was away catches up once, where the last time that was missed is less than
 * ten minutes ago; what else was missed is skipped, and said to be.
 */
import { nextOf, type Plan } from "./timing.ts";

export const lateMaxMs = 10 * 60_000;
/** Of a long absence no more are recorded than these. */
const recordedMax = 100;

export interface Due {
  /** The time that is run for. */
  tick: Date | undefined;
  skipped: Date[];
  next: Date | undefined;
}

export function dueOf(plan: Plan, next: Date, now: Date): Due {
  const nextAfter = nextOf(plan);
  const times: Date[] = [];
  let at: Date | undefined = next;
  while (at && at <= now) {
    times.push(at);
    const isMany = times.length === recordedMax;
    const from: Date = isMany ? new Date(Math.max(at.getTime(), now.getTime() - lateMaxMs)) : at;
    at = nextAfter(from);
  }
  const last = times.at(-1);
  const isLate = last !== undefined && now.getTime() - last.getTime() >= lateMaxMs;
  return { tick: isLate ? undefined : last, skipped: isLate ? times : times.slice(0, -1), next: at };
}
