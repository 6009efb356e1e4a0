/**
 * Starts the run of a due schedule. A single transaction stores the run, its tick and the next time. So after a crash
 * the schedule is still due, and for a second process it is no longer due. If no run can start, the tick records the
 * reason. The reason counts as a failure unless a caller caused it intentionally.
 */
import { workerActor } from "#accounts/worker-actor.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { isNumbered } from "../agents/names.ts";
import { agentNotFound } from "../errors.ts";
import { sessionQueueFull } from "../runs/api/run-errors.ts";
import { invoke } from "../runs/api/invoke.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { type Due, dueOf } from "./due.ts";
import { countFailure } from "./failures.ts";
import {
  changeSchedule,
  type DueSchedule,
  insertRunning,
  insertTicks,
  lockDue,
  type NewTick,
} from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

/** Thrown if another process handled this time, or if the schedule changed. */
class NotDue extends Error {}

/** Thrown if this time already had a run: the clock was set back, or the schedule was disabled and enabled again. */
class HasRun extends Error {}

/** Errors that a caller caused intentionally, such as a pause. */
const intended: ReadonlySet<string> = new Set([
  "agent_archived",
  "agent_paused",
  "account_suspended",
  // This code means that a run of the schedule already waits for the session.
  sessionQueueFull.code,
]);

export async function fire(app: Needs, runs: RunExecutor, schedule: DueSchedule): Promise<void> {
  const now = app.clock.now();
  const due = dueOf(schedule, schedule.next_run_at, now);
  const { tick } = due;
  await passKillPoint("agent.schedule.due");
  try {
    if (!tick) return await skipTime(app, schedule, due, now, "missed");
    await begin(app, runs, schedule, { ...due, tick }, now);
    await passKillPoint("agent.schedule.committed");
  } catch (error) {
    if (error instanceof NotDue) return;
    const isKnown = error instanceof DomainError || error instanceof HasRun;
    if (!isKnown) throw error;
    const passing =
      error instanceof HasRun
        ? transaction(app.db, (tx) => advance(tx, schedule, due, now))
        : skipTime(app, schedule, due, now, error.code);
    await passing.catch((again: unknown) => {
      if (!(again instanceof NotDue)) throw again;
    });
  }
}

async function begin(
  app: Needs,
  runs: RunExecutor,
  schedule: DueSchedule,
  due: Due & { tick: Date },
  now: Date,
): Promise<void> {
  const { id, workspace_id: workspaceId, agent_id, message, agent_name, worker_id } = schedule;
  const who = { workspaceId, workerId: worker_id, label: agent_name };
  const actor = await workerActor(app.db, who, ["agents:invoke"]);
  if (!actor) throw agentNotFound();
  const { qualifier, end_user_id, session } = schedule;
  const input = {
    input: message,
    qualifier,
    upgrade: isNumbered(qualifier),
    end_user_id: end_user_id ?? undefined,
    wait_s: 0,
    stream: false,
  };
  await invoke(app, runs, actor, agent_id, input, {
    type: "schedule",
    id,
    session: session ?? undefined,
    // At most one run waits, because a second run would have the same input.
    waitingMax: 1,
    within: async (tx, run) => {
      await advance(tx, schedule, due, now);
      const tick: NewTick = { schedule_id: id, tick: due.tick, status: "running", run_id: run.id, at: now };
      if (!(await insertRunning(tx, tick))) throw new HasRun();
      const last = { last_run_at: now, last_run_id: run.id, last_status: null, last_error: null };
      await changeSchedule(tx, id, last);
      await passKillPoint("agent.schedule.commits");
    },
  });
}

/** Records a time as skipped, without a run. */
async function skipTime(
  app: Needs,
  schedule: DueSchedule,
  due: Due,
  now: Date,
  reason: string,
): Promise<void> {
  const isFailure = due.tick !== undefined && !intended.has(reason);
  const status = isFailure ? "refused" : "skipped";
  await transaction(app.db, async (tx) => {
    const row = await advance(tx, schedule, due, now);
    if (due.tick) await insertTicks(tx, [{ ...tickOf(schedule, due.tick, now), status, reason }]);
    await changeSchedule(tx, schedule.id, { last_status: status, last_error: reason });
    if (isFailure) await countFailure(tx, { ...row, next_run_at: due.next ?? null }, reason);
  });
}

/** Advances the schedule to the next time, and records the skipped times between. */
async function advance(tx: Db, schedule: DueSchedule, due: Due, now: Date) {
  const row = await lockDue(tx, schedule);
  if (!row) throw new NotDue();
  await changeSchedule(tx, schedule.id, { next_run_at: due.next ?? null });
  const skipped = due.skipped.map((tick) => tickOf(schedule, tick, now));
  await insertTicks(tx, skipped);
  return row;
}

function tickOf({ id }: DueSchedule, tick: Date, at: Date): NewTick {
  return { schedule_id: id, tick, status: "skipped", reason: "missed", run_id: null, at };
}
