import { defineError } from "#lib/errors.ts";

export const scheduleNotFound = defineError("schedule_not_found", 404, () => "No such schedule.");
export const scheduleLimitReached = defineError("schedule_limit_reached", 409, (allowed: number) => ({
  detail: `An agent has at most ${allowed} schedules; delete one first.`,
  meta: { limit: "schedules", allowed },
}));
