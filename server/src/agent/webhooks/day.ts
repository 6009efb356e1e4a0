/** Days to which daily caps apply. A day begins at midnight UTC. */

const dayMs = 24 * 3_600_000;

export function dayOf(at: Date): Date {
  return new Date(Math.floor(at.getTime() / dayMs) * dayMs);
}

export function secondsToNextDay(at: Date): number {
  return Math.ceil((dayOf(at).getTime() + dayMs - at.getTime()) / 1000);
}
