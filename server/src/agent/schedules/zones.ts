/**
 * Wall clocks of time zones. A local time is represented by the milliseconds that it would have in UTC. Some local
 * times do not exist, because clocks go forward. Some exist twice, because clocks go back.
 */

const minuteMs = 60_000;
const dayMs = 24 * 3_600_000;

/** Cache of formatters. Creating a formatter takes a hundred times longer than using it. */
const formatters = new Map<string, Intl.DateTimeFormat>();
const formattersMax = 100;

/** Returns true for IANA names. Offsets and the host's own zone are refused. */
export function isZone(name: string): boolean {
  if (!/^[A-Za-z][\w+-]*(\/[\w+-]+)*$/.test(name)) return false;
  try {
    return new Intl.DateTimeFormat("en-US", { timeZone: name }) instanceof Intl.DateTimeFormat;
  } catch {
    return false;
  }
}

/** Returns the local time of a moment, to the second. */
export function localOf(zone: string, atMs: number): number {
  const seconds = Math.floor(atMs / 1000) * 1000;
  if (zone === "UTC") return seconds;
  // The text `3/29/2026, 03:00:00` is parsed, because `formatToParts` takes seven times as long.
  const shown = formatterOf(zone).format(seconds).match(/\d+/g) ?? [];
  const [month = 0, day = 0, year = 0, hour = 0, minute = 0, second = 0] = shown.map(Number);
  return Date.UTC(year, month - 1, day, hour, minute, second);
}

/**
 * Returns the first moment with this local minute. If the local minute is skipped, returns the first moment after the
 * gap.
 */
export function momentOf(zone: string, localMs: number): number {
  // No zone differs from UTC by more than a day, and no zone changes twice within two days.
  const offsetBefore = offsetAt(zone, localMs - dayMs);
  const offsetAfter = offsetAt(zone, localMs + dayMs);
  const found = [localMs - offsetBefore, localMs - offsetAfter].filter(
    (atMs) => localOf(zone, atMs) === localMs,
  );
  return found.length > 0 ? Math.min(...found) : changeBetween(zone, localMs - dayMs, localMs + dayMs);
}

/** Returns the first minute with the later offset. */
function changeBetween(zone: string, earlierMs: number, laterMs: number): number {
  const offset = offsetAt(zone, laterMs);
  let [before, after] = [earlierMs, laterMs];
  while (after - before > minuteMs) {
    const middle = Math.floor((before + after) / 2 / minuteMs) * minuteMs;
    if (offsetAt(zone, middle) === offset) after = middle;
    else before = middle;
  }
  return after;
}

function offsetAt(zone: string, atMs: number): number {
  return localOf(zone, atMs) - Math.floor(atMs / 1000) * 1000;
}

function formatterOf(zone: string): Intl.DateTimeFormat {
  const known = formatters.get(zone);
  if (known) return known;
  if (formatters.size >= formattersMax) formatters.clear();
  const made = new Intl.DateTimeFormat("en-US", {
    timeZone: zone,
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  });
  formatters.set(zone, made);
  return made;
}
