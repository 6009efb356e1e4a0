/**
 * Determines which times of a schedule are due. After a downtime, the last missed time gets a run if it is less than
 * ten minutes ago. All other missed times are skipped and recorded.
 */
import { makeFindNext, type Plan } from "./timing.ts";

const lateMaxMs = 10 * 60_000;
/** Maximum number of skipped times that are recorded after a long downtime. */
const recordedMax = 100;

export interface Due {
  /** The time that gets a run. Undefined if no time does. */
  tick: Date | undefined;
  skipped: Date[];
  next: Date | undefined;
}

export function dueOf(plan: Plan, next: Date, now: Date): Due {
  const nextAfter = makeFindNext(plan);
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
