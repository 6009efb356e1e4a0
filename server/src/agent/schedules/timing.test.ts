import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { dueOf } from "./due.ts";
import { makeFindNext, parseTiming, upcoming } from "./timing.ts";
import { isZone, localOf } from "./zones.ts";

const minuteMs = 60_000;
const dayMs = 24 * 3_600_000;
const anchor = new Date("2026-01-01T00:00:00Z");

const times = (schedule: string, timezone: string, after: string, count: number) =>
  upcoming({ schedule, timezone, anchor }, new Date(after), count).map((at) =>
    at.toISOString().replace(":00.000Z", "Z"),
  );

test("expands a preset to its cron expression at its time", () => {
  expect(times("hourly", "UTC", "2026-03-01T00:00:00Z", 2)).toEqual([
    "2026-03-01T01:00Z",
    "2026-03-01T02:00Z",
  ]);
  expect(times("hourly@00:15", "UTC", "2026-03-01T00:00:00Z", 1)).toEqual(["2026-03-01T00:15Z"]);
  expect(times("daily @09:30", "UTC", "2026-03-01T10:00:00Z", 1)).toEqual(["2026-03-02T09:30Z"]);
  // 6 March 2026 is a Friday.
  expect(times("weekdays@08:00", "UTC", "2026-03-06T07:00:00Z", 2)).toEqual([
    "2026-03-06T08:00Z",
    "2026-03-09T08:00Z",
  ]);
  expect(times("weekly", "UTC", "2026-03-06T00:00:00Z", 1)).toEqual(["2026-03-09T00:00Z"]);
  expect(times("monthly@23:59", "UTC", "2026-03-06T00:00:00Z", 1)).toEqual(["2026-04-01T23:59Z"]);
});

test("counts the times of an interval from its anchor, across clock changes", () => {
  expect(times("every 15m", "Europe/Berlin", "2026-03-29T00:50:00Z", 3)).toEqual([
    "2026-03-29T01:00Z",
    "2026-03-29T01:15Z",
    "2026-03-29T01:30Z",
  ]);
  const plan = { schedule: "every 2h", timezone: "UTC", anchor: new Date("2026-01-01T00:07:30Z") };
  expect(makeFindNext(plan)(plan.anchor)).toEqual(new Date("2026-01-01T02:07:30Z"));
});

test("runs a local time that a clock change skips once, right after the gap", () => {
  expect(times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2)).toEqual([
    "2026-03-29T01:00Z",
    "2026-03-30T00:30Z",
  ]);
  expect(times("*/20 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 2)).toEqual([
    "2026-03-29T01:00Z",
    "2026-03-30T00:00Z",
  ]);
});

test("runs a local time that a clock change repeats once, at its first occurrence", () => {
  expect(times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2)).toEqual([
    "2026-10-25T00:30Z",
    "2026-10-26T01:30Z",
  ]);
  expect(times("0 * * * *", "America/New_York", "2026-11-01T04:30:00Z", 3)).toEqual([
    "2026-11-01T05:00Z",
    "2026-11-01T07:00Z",
    "2026-11-01T08:00Z",
  ]);
  // The clocks of Lord Howe Island change by half an hour.
  expect(times("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", 2)).toEqual([
    "2026-04-04T14:45Z",
    "2026-04-05T15:15Z",
  ]);
});

test("runs a daily schedule once if a time zone skips the day", () => {
  expect(times("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00:00Z", 2)).toEqual([
    "2011-12-30T10:00Z",
    "2011-12-30T19:00Z",
  ]);
});

test.each([
  ["", "must be five fields"],
  ["nightly", "must be five fields"],
  ["* * * *", "must be five fields"],
  ["* * * * * *", "must be five fields"],
  ["@daily", "must be five fields"],
  ["2026-01-01T00:00:00", "must be five fields"],
  ["60 * * * *", "is not a cron expression"],
  ["0 0 * * 8", "is not a cron expression"],
  ["daily@24:00", "from 00:00 to 23:59"],
  ["every 0m", "at least one minute"],
  ["every 9000h", "at most a year"],
  ["every 30s", "must be five fields"],
  ["constructor", "must be five fields"],
])("rejects %j with a reason", (text, why) => {
  expect(() => parseTiming(text)).toThrow(why);
});

test("accepts only IANA names as time zones", () => {
  expect(["UTC", "Europe/Berlin", "America/Argentina/Ushuaia", "Etc/GMT+5"].every(isZone)).toBe(true);
  expect(["", "Europe/Nowhere", "+02:00", "local", "../etc", "Europe/Berlin\0"].some(isZone)).toBe(false);
});

/**
 * Zones with unusual clock changes: by half an hour, by two hours, at midnight, in the opposite season, for Ramadan.
 */
const changing = [
  "Europe/Berlin",
  "Europe/Dublin",
  "America/New_York",
  "America/St_Johns",
  "America/Havana",
  "America/Santiago",
  "Australia/Lord_Howe",
  "Pacific/Chatham",
  "Africa/Casablanca",
  "Africa/Cairo",
  "Asia/Beirut",
  "Antarctica/Troll",
];

/** Returns the start times of the days on which the zone's offset changes. */
function changesOf(zone: string, year: number): number[] {
  const offset = (at: number) => localOf(zone, at) - at;
  const found: number[] = [];
  for (let at = Date.UTC(year, 0, 1); at < Date.UTC(year + 1, 0, 1); at += dayMs)
    if (offset(at) !== offset(at + dayMs)) found.push(at);
  return found;
}

const field = (from: number, to: number) =>
  fc.oneof(
    fc.constant("*"),
    fc.integer({ min: from, max: to }).map(String),
    fc.integer({ min: 2, max: 30 }).map((step) => `*/${Math.min(step, to)}`),
    fc
      .uniqueArray(fc.integer({ min: from, max: to }), { minLength: 2, maxLength: 4 })
      .map((all) => all.join(",")),
  );

/** Returns true if a cron field matches a value. Supports only the forms above. */
function holds(text: string, value: number): boolean {
  if (text === "*") return true;
  if (text.startsWith("*/")) return value % Number(text.slice(2)) === 0;
  return text.split(",").map(Number).includes(value);
}

/**
 * Finds times by checking every minute, as a reference. A local minute counts when the clock shows it first or jumps
 * over it.
 */
function findByMinute(minute: string, hour: string, zone: string, from: number, to: number): number[] {
  const fits = (local: number) => {
    const at = new Date(local);
    return holds(minute, at.getUTCMinutes()) && holds(hour, at.getUTCHours());
  };
  const found: number[] = [];
  // The search starts three hours earlier, because no clock change repeats as much time.
  const before = from - dayMs / 8;
  let shown = localOf(zone, before);
  for (let at = before + minuteMs; at < to; at += minuteMs) {
    const local = localOf(zone, at);
    let isDue = false;
    for (; shown < local; shown += minuteMs) isDue ||= fits(shown + minuteMs);
    if (isDue && at > from) found.push(at);
  }
  return found;
}

describe("around every clock change", () => {
  test("runs each matching local time once, even if the clock change skips or repeats the time", () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...changing),
        fc.integer({ min: 2024, max: 2036 }),
        fc.nat(),
        field(0, 59),
        field(0, 23),
        (timezone, year, which, minute, hour) => {
          const changes = changesOf(timezone, year);
          fc.pre(changes.length > 0);
          const from = changes[which % changes.length]! - dayMs / 8;
          const to = from + 1.25 * dayMs;
          const plan = { schedule: `${minute} ${hour} * * *`, timezone, anchor };
          const next = makeFindNext(plan);
          const found: number[] = [];
          for (let at = next(new Date(from)); at && at.getTime() < to; at = next(at))
            found.push(at.getTime());
          expect(found).toEqual(findByMinute(minute, hour, timezone, from, to));
        },
      ),
      { numRuns: 20 },
    );
  });

  test("runs a daily schedule once on each day of a year, in any time zone", () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...Intl.supportedValuesOf("timeZone")),
        fc.integer({ min: 0, max: 23 }),
        fc.integer({ min: 0, max: 59 }),
        (timezone, hour, minute) => {
          const plan = { schedule: `daily@${hour}:${String(minute).padStart(2, "0")}`, timezone, anchor };
          const days = upcoming(plan, new Date("2026-01-01T00:00:00Z"), 366).map((at) =>
            new Date(localOf(timezone, at.getTime())).toISOString().slice(0, 10),
          );
          expect(new Set(days).size).toBe(366);
        },
      ),
      { numRuns: 12 },
    );
  });
});

describe("due times", () => {
  const plan = { schedule: "* * * * *", timezone: "UTC", anchor };
  const at = (text: string) => new Date(`2026-01-01T${text}Z`);

  test("returns one due time if there was no downtime", () => {
    expect(dueOf(plan, at("10:00:00"), at("10:00:00.400"))).toEqual({
      tick: at("10:00:00"),
      skipped: [],
      next: at("10:01:00"),
    });
    expect(dueOf(plan, at("10:00:00"), at("09:59:59"))).toMatchObject({ tick: undefined, skipped: [] });
  });

  test("returns the last missed time if it is less than ten minutes ago", () => {
    const { tick, skipped, next } = dueOf(plan, at("10:00:00"), at("10:07:30"));
    expect([tick, skipped.length, next]).toEqual([at("10:07:00"), 7, at("10:08:00")]);
    const daily = { schedule: "daily@10:00", timezone: "UTC", anchor };
    expect(dueOf(daily, at("10:00:00"), at("10:09:59")).tick).toEqual(at("10:00:00"));
    expect(dueOf(daily, at("10:00:00"), at("10:10:00"))).toEqual({
      tick: undefined,
      skipped: [at("10:00:00")],
      next: new Date("2026-01-02T10:00:00Z"),
    });
  });

  test("limits the number of skipped times after a long downtime", () => {
    const { tick, skipped, next } = dueOf(plan, at("00:00:00"), new Date("2027-01-01T00:00:30Z"));
    expect([tick, next]).toEqual([new Date("2027-01-01T00:00:00Z"), new Date("2027-01-01T00:01:00Z")]);
    expect(skipped.length).toBeLessThan(120);
  });
});
