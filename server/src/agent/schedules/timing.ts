/**
 * Computes the times of a schedule. Cron expressions and presets use a wall clock: each matching local minute runs
 * once. If clocks repeat a minute, its first occurrence runs. If clocks skip a minute, it runs right after the gap.
 * `every …` counts elapsed time, independent of clock changes.
 */
import { Cron } from "croner";
import { localOf, momentOf } from "./zones.ts";

export type Timing = { kind: "cron"; pattern: string } | { kind: "every"; minutes: number };

/** Settings that determine a schedule's times. */
export interface Plan {
  schedule: string;
  timezone: string;
  /** Time at which the intervals of `every …` start. */
  anchor: Date;
}

/** Thrown for an invalid schedule. The message is for the author of the schedule. */
export class TimingError extends Error {}

const minuteMs = 60_000;
const everyMaxMinutes = 365 * 24 * 60;

/** Cron expressions of the presets at a minute and an hour. Weeks begin on Monday. */
const presets: Readonly<Record<string, (minute: number, hour: number) => string>> = {
  hourly: (minute) => `${minute} * * * *`,
  daily: (minute, hour) => `${minute} ${hour} * * *`,
  weekdays: (minute, hour) => `${minute} ${hour} * * 1-5`,
  weekly: (minute, hour) => `${minute} ${hour} * * 1`,
  monthly: (minute, hour) => `${minute} ${hour} 1 * *`,
};

/** Parses the text of a schedule. Throws `TimingError`. */
export function parseTiming(text: string): Timing {
  const words = text.trim();
  const every = /^every\s+(\d{1,6})\s*([mh])$/i.exec(words);
  if (every) return everyTiming(Number(every[1]), every[2]!.toLowerCase());
  const preset = /^([a-z]+)\s*(?:@\s*(\d{1,2}):(\d{2}))?$/i.exec(words);
  if (preset) return presetTiming(preset[1]!.toLowerCase(), Number(preset[2] ?? 0), Number(preset[3] ?? 0));
  return cronTiming(words);
}

/** Returns the next time after a given time, or undefined if there is none. */
export type FindNext = (after: Date) => Date | undefined;

/** Returns the function that finds a schedule's next time. Throws `TimingError`. */
export function makeFindNext({ schedule, timezone, anchor }: Plan): FindNext {
  const timing = parseTiming(schedule);
  if (timing.kind === "every")
    return (after) => nextInterval(timing.minutes * minuteMs, anchor.getTime(), after.getTime());
  const cron = cronOf(timing.pattern);
  return (after) => nextOnClock(cron, timezone, after.getTime());
}

/** Returns the next `count` times after a given time. */
export function upcoming(plan: Plan, after: Date, count: number): Date[] {
  const next = makeFindNext(plan);
  const found: Date[] = [];
  for (let at: Date | undefined = after; found.length < count; found.push(at)) {
    at = next(at);
    if (!at) break;
  }
  return found;
}

function everyTiming(count: number, unit: string): Timing {
  const minutes = unit === "h" ? count * 60 : count;
  if (minutes < 1) throw new TimingError("must be at least one minute: `every 1m`");
  if (minutes > everyMaxMinutes) throw new TimingError("must be at most a year: `every 8760h`");
  return { kind: "every", minutes };
}

function presetTiming(name: string, hour: number, minute: number): Timing {
  const make = Object.hasOwn(presets, name) ? presets[name] : undefined;
  if (!make) throw new TimingError(wanted);
  if (hour > 23 || minute > 59) throw new TimingError("must name a time from 00:00 to 23:59 after the @");
  return { kind: "cron", pattern: make(minute, hour) };
}

const wanted =
  "must be five fields of cron (`*/15 9-17 * * 1-5`), one of hourly, daily, weekdays, weekly and monthly, with or without `@HH:MM`, or `every 15m` or `every 2h`";

function cronTiming(text: string): Timing {
  const fields = text.split(/\s+/);
  if (fields.length !== 5 || fields.some((field) => !/^[\w*,/#-]+$/.test(field)))
    throw new TimingError(wanted);
  const pattern = fields.join(" ");
  cronOf(pattern);
  return { kind: "cron", pattern };
}

function cronOf(pattern: string): Cron {
  try {
    // The library computes in UTC. This module converts time zones, so that every pattern handles repeated and skipped
    // times alike.
    return new Cron(pattern, { mode: "5-part", utcOffset: 0, paused: true });
  } catch (error) {
    throw new TimingError(`is not a cron expression: ${(error as Error).message.replace(/^\w+: /, "")}`);
  }
}

function nextInterval(stepMs: number, anchorMs: number, afterMs: number): Date {
  const steps = Math.max(1, Math.floor((afterMs - anchorMs) / stepMs) + 1);
  return new Date(anchorMs + steps * stepMs);
}

function nextOnClock(cron: Cron, zone: string, afterMs: number): Date | undefined {
  // Later local times never map to earlier moments, so the search begins at the current local time.
  let local: Date | null = new Date(localOf(zone, afterMs));
  for (;;) {
    local = cron.nextRun(local);
    if (!local) return undefined;
    const moment = momentOf(zone, local.getTime());
    // A repeated local time already ran at its first occurrence.
    if (moment > afterMs) return new Date(moment);
  }
}
