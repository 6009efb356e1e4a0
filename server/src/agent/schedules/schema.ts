/** Wire format of schedules. */
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
    "Times of the schedule: five cron fields, an interval such as `every 15m` or `every 2h`, or a preset. Presets are `hourly`, `daily`, `weekdays`, `weekly` (Mondays) and `monthly` (the 1st). They run at 00:00, or at the time after `@`, for example `daily@09:00`.",
  );
const Timezone = z
  .string()
  .min(1)
  .max(64)
  .describe(
    "IANA time zone of the schedule, for example `Europe/Berlin`. Default for a new schedule: `UTC`.",
  );
const Message = z
  .string()
  .min(1)
  .max(65_536)
  .describe("Message that the agent gets each time, at most 65,536 characters.");
const Name = z
  .string()
  .min(1)
  .max(64)
  .nullable()
  .describe("Display name, for example `daily report`. Null for none.");
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
    "Version of new sessions: an alias, a number, or `latest`. A number also moves an existing session to that version. Null for the default `prod`.",
  );

export const ScheduleParams = z.strictObject({
  agent: AgentReference,
  schedule_id: z.string().max(64).describe("Id of the schedule: `sch_…`."),
});

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
    enabled: z
      .boolean()
      .optional()
      .describe(
        "False switches the schedule off. True switches it on; `consecutive_failures` of a schedule that was off becomes 0.",
      ),
  })
  .meta({ id: "AgentScheduleUpdate" });
export type ScheduleUpdate = z.output<typeof ScheduleUpdate>;

const schedule = {
  id: z.string().describe("Id of the schedule: `sch_…`."),
  schedule: z
    .string()
    .describe("Times of the schedule: cron fields, a preset or an interval, for example `daily@09:00`."),
  message: z.string().describe("Message that the agent gets each time."),
  timezone: z.string().describe("IANA time zone of the schedule, for example `Europe/Berlin`."),
  name: z.string().nullable().describe("Display name. Null if there is none."),
  end_user_id: z.string().nullable().describe("End user of the runs. Null if there is none."),
  session: z
    .string()
    .nullable()
    .describe("Key of the session that the runs share. Null if each run has its own session."),
  qualifier: z
    .string()
    .describe("Version of new sessions: an alias, a number, or `latest`. `prod` if none was set."),
  enabled: z
    .boolean()
    .describe("False if the schedule is switched off, by a request or after ten failures in a row."),
  next_run_at: timestamp.nullable().describe("Time of the next run. Null if the schedule is switched off."),
  upcoming_runs_at: z
    .array(timestamp)
    .describe("Times of the next five runs. Empty if the schedule is switched off."),
  last_run_at: timestamp.nullable().describe("Time when the last run began. Null before the first run."),
  last_run_id: z.string().nullable().describe("Id of the last run: `run_…`. Null before the first run."),
  last_status: z
    .enum([...runStatuses, "skipped", "refused"])
    .nullable()
    .describe(
      "Status of the last run, or `refused` if no run could begin. `skipped` means that the server was down, the agent was paused, or an earlier run still waited for its session. Null before the first time.",
    ),
  last_error: z
    .string()
    .nullable()
    .describe(
      `Code of the last failure or skip: ${runErrorCodes.join(", ")}, an error code of invoke, or \`missed\`. Null if there was none.`,
    ),
  consecutive_failures: z.int().describe("Number of failures in a row. The tenth switches the schedule off."),
  disabled_reason: z
    .string()
    .nullable()
    .describe("Reason why the server switched the schedule off: `consecutive_failures`. Null otherwise."),
  created_at: timestamp.describe("Time when the schedule was created."),
};
export const Schedule = z.object(schedule).meta({ id: "AgentSchedule" });
export type Schedule = z.output<typeof Schedule>;
export const ScheduleList = z
  .object({ items: z.array(Schedule).describe("Schedules of the agent, newest first.") })
  .meta({ id: "AgentScheduleList" });

/** Fields of the record that a PATCH accepts and ignores. */
export const scheduleReadOnlyFields = Object.keys(schedule).filter(
  (field) => !(field in ScheduleUpdate.shape),
);

/** Converts a row to the JSON of every response. */
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
