/** Counts a schedule's consecutive failures, and disables the schedule after the tenth failure. */
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import {
  changeSchedule,
  type EndedTick,
  endTick,
  failuresAfter,
  findEnded,
  findTickOf,
  hasCompletedAfter,
  lockSchedule,
  reopenTick,
  type ScheduleRow,
} from "./store.ts";

/** Number of consecutive failures that disables a schedule, as the API document states. */
const failuresMax = 10;
const atOnce = 200;

/** Errors that a caller caused intentionally. Such an error does not count as a failure of the schedule. */
const intended: ReadonlySet<string | null> = new Set(["cancelled", "session_ended"]);

/** Counts the outcomes of ended runs that schedules started. */
export async function countEndedRuns({ db }: Pick<App, "db">): Promise<void> {
  for (const ended of await findEnded(db, atOnce)) await transaction(db, (tx) => countOne(tx, ended));
}

async function countOne(tx: Db, ended: EndedTick): Promise<void> {
  const schedule = await lockSchedule(tx, ended.schedule_id);
  if (!schedule) return;
  const { run_status, run_error } = ended;
  const isMeant = run_status === null || intended.has(run_error);
  const status = run_status === "completed" ? "completed" : isMeant ? "stopped" : "failed";
  if (!(await endTick(tx, ended, status, run_error))) return;
  if (status === "completed") {
    // A resumed run may complete after later times failed. The failures of these later times still count.
    const later = ended.run_resumes ? await failuresAfter(tx, ended) : 0;
    const failures = Math.min(schedule.consecutive_failures, later);
    await changeSchedule(tx, schedule.id, { consecutive_failures: failures });
  }
  if (status !== "failed") return;
  const isPast = ended.run_resumes ? await hasCompletedAfter(tx, ended) : false;
  if (!isPast) await countFailure(tx, schedule, run_error ?? "internal");
}

/** Removes a counted failure when its run is resumed. The run's next end counts instead. */
export async function uncountFailure(tx: Db, runId: string): Promise<void> {
  const scheduleId = (await findTickOf(tx, runId))?.schedule_id;
  const schedule = scheduleId === undefined ? undefined : await lockSchedule(tx, scheduleId);
  // The tick is read again, because the failure may have been counted meanwhile.
  const tick = schedule && (await findTickOf(tx, runId));
  if (!tick || (tick.status !== "failed" && tick.status !== "stopped")) return;
  await reopenTick(tx, tick);
  if (tick.status !== "failed" || (await hasCompletedAfter(tx, tick))) return;
  const consecutive_failures = Math.max(0, schedule.consecutive_failures - 1);
  await changeSchedule(tx, schedule.id, { consecutive_failures });
}

/** Counts a failure. The tenth failure disables the schedule. The caller holds the lock on the schedule's row. */
export async function countFailure(tx: Db, schedule: ScheduleRow, reason: string): Promise<void> {
  const failures = schedule.consecutive_failures + 1;
  await changeSchedule(tx, schedule.id, { consecutive_failures: failures });
  if (failures < failuresMax || schedule.next_run_at === null) return;
  await changeSchedule(tx, schedule.id, { next_run_at: null, disabled_reason: "consecutive_failures" });
  const label = schedule.name ?? schedule.schedule;
  const target = { kind: "agent_schedule", id: schedule.id, label };
  await recordActivity(
    tx,
    systemActor("schedules"),
    "agent_schedule.disabled",
    target,
    schedule.workspace_id,
    {
      reason,
    },
  );
  await notify(tx, {
    workspaceId: schedule.workspace_id,
    kind: "schedule_disabled",
    title: `The schedule "${label}" was disabled`,
    body:
      `It failed ${failures} times in a row, the last time with ${reason}. Fix the cause, then set ` +
      "`enabled` to true.",
    target,
  });
}
