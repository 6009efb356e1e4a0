/** The wire of schedules. */
import { z } from "zod";
import { AgentReference } from "../agents/schema.ts";
import { EndUserId } from "../end-users/id.ts";
import { runErrorCodes, runStatuses } from "../runs/states.ts";
import type { ScheduleView } from "./store.ts";
import { upcoming } from "./timing.ts";

const timestamp = z.iso.datetime();
const upcomingCount = 5;

const Timing = z
  .string()
  .min(1)
  .max(200)
  .describe(
    "Five fields of cron; `hourly`, `daily`, `weekdays`, `weekly` (Mondays) or `monthly` (the 1st), at 00:00 or at `@HH:MM`; or `every 15m`, `every 2h`.",
  );
const Timezone = z.string().min(1).max(64).describe("An IANA name such as Europe/Berlin.");
const Message = z.string().min(1).max(65_536).describe("What the agent is told each time.");
const Name = z.string().min(1).max(64).nullable();
const EndUser = EndUserId.nullable().describe("End user of the runs. Null for none.");
const SessionKey = z
  .string()
  .min(1)
  .max(256)
  .nullable()
  .describe(
    "Key of the session: all times of the schedule share the live session of this key, one run after the other. Null begins a session each time.",
  );
const Qualifier = z
  .string()
  .min(1)
  .max(64)
  .nullable()
  .describe(
    "Version of new sessions: an alias, a number, or `latest`. A number also moves a session that exists. Null for the default `prod`.",
  );

export const ScheduleParams = z.strictObject({ agent: AgentReference, schedule_id: z.string().max(64) });

export const ScheduleCreate = z
  .strictObject({
    schedule: Timing,
    message: Message,
    timezone: Timezone.default("UTC"),
    name: Name.optional(),
    end_user_id: EndUser.optional(),
    session: SessionKey.optional(),
    qualifier: Qualifier.optional(),
  })
  .meta({ id: "AgentScheduleCreate" });
export type ScheduleCreate = z.output<typeof ScheduleCreate>;

export const ScheduleUpdate = z
  .strictObject({
    schedule: Timing.optional(),
    timezone: Timezone.optional(),
    message: Message.optional(),
    name: Name.optional(),
    end_user_id: EndUser.optional(),
    session: SessionKey.optional(),
    qualifier: Qualifier.optional(),
    enabled: z.boolean().optional().describe("Switched on again, it starts without failures."),
  })
  .meta({ id: "AgentScheduleUpdate" });
export type ScheduleUpdate = z.output<typeof ScheduleUpdate>;

const schedule = {
  id: z.string(),
  schedule: z.string(),
  message: z.string(),
  timezone: z.string(),
  name: z.string().nullable(),
  end_user_id: z.string().nullable(),
  session: z.string().nullable(),
  qualifier: z.string(),
  enabled: z.boolean(),
  next_run_at: timestamp.nullable(),
  upcoming_runs_at: z.array(timestamp).describe("The next five; none where it is switched off."),
  last_run_at: timestamp.nullable(),
  last_run_id: z.string().nullable(),
  last_status: z
    .enum([...runStatuses, "skipped", "refused"])
    .nullable()
    .describe(
      "Outcome of the last time: its run's status; `refused` if no run could begin; `skipped` if the server was down, the agent was paused, or a run of the schedule already waited for its session.",
    ),
  last_error: z
    .string()
    .nullable()
    .describe(
      `Why, where it did not end well: ${runErrorCodes.join(", ")}, a code of invoke, or \`missed\`.`,
    ),
  consecutive_failures: z.int().describe("Ten switch it off."),
  disabled_reason: z
    .string()
    .nullable()
    .describe("`consecutive_failures` where it was switched off for that."),
  created_at: timestamp,
};
export const Schedule = z.object(schedule).meta({ id: "AgentSchedule" });
export type Schedule = z.output<typeof Schedule>;
export const ScheduleList = z.object({ items: z.array(Schedule) }).meta({ id: "AgentScheduleList" });

/** Fields of the record that a PATCH accepts and ignores. */
export const scheduleReadOnlyFields = Object.keys(schedule).filter(
  (field) => !(field in ScheduleUpdate.shape),
);

/** The only way from a row to JSON. */
export function toSchedule(row: ScheduleView): Schedule {
  const next = row.next_run_at;
  const times = next ? [next, ...upcoming(row, next, upcomingCount - 1)] : [];
  return {
    id: row.id,
    schedule: row.schedule,
    message: row.message,
    timezone: row.timezone,
    name: row.name,
    end_user_id: row.end_user_id,
    session: row.session,
    qualifier: row.qualifier,
    enabled: next !== null,
    next_run_at: next?.toISOString() ?? null,
    upcoming_runs_at: times.map((at) => at.toISOString()),
    last_run_at: row.last_run_at?.toISOString() ?? null,
    last_run_id: row.last_run_id,
    last_status: row.last_status ?? row.run_status,
    last_error: row.last_status ? row.last_error : row.run_error,
    consecutive_failures: row.consecutive_failures,
    disabled_reason: row.disabled_reason,
    created_at: row.created_at.toISOString(),
  };
}
