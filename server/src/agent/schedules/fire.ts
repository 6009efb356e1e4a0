/**
 * A schedule's time has come. The run, the tick that says so and the next time are one transaction: whoever is killed
 * before it leaves a schedule that is due, and whoever comes second finds one that is not. Where no run can begin, why
 * is recorded, and counts as a failure unless somebody meant it so.
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
import type { AgentRuns } from "../runs/engine/run-executor.ts";
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

/** Somebody else was here first, or the schedule was changed. */
class NotDue extends Error {}

/** The time was run for already: the clock was set back, or somebody switched it off and on. */
class HasRun extends Error {}

/** What keeps an agent from running because somebody wants it so. */
const meant: ReadonlySet<string> = new Set([
  "agent_archived",
  "agent_paused",
  "account_suspended",
  // A run of the schedule waits for the session already.
  sessionQueueFull.code,
]);

export async function fire(app: Needs, runs: AgentRuns, schedule: DueSchedule): Promise<void> {
  const now = app.clock.now();
  const due = dueOf(schedule, schedule.next_run_at, now);
  const { tick } = due;
  await passKillPoint("agent.schedule.due");
  try {
    if (!tick) return await pass(app, schedule, due, now, "missed");
    await begin(app, runs, schedule, { ...due, tick }, now);
    await passKillPoint("agent.schedule.committed");
  } catch (error) {
    if (error instanceof NotDue) return;
    const isKnown = error instanceof DomainError || error instanceof HasRun;
    if (!isKnown) throw error;
    const passing =
      error instanceof HasRun
        ? transaction(app.db, (tx) => moveOn(tx, schedule, due, now))
        : pass(app, schedule, due, now, error.code);
    await passing.catch((again: unknown) => {
      if (!(again instanceof NotDue)) throw again;
    });
  }
}

async function begin(
  app: Needs,
  runs: AgentRuns,
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
    // A second notification would have the same text.
    waitingMax: 1,
    within: async (tx, run) => {
      await moveOn(tx, schedule, due, now);
      const tick: NewTick = { schedule_id: id, tick: due.tick, status: "running", run_id: run.id, at: now };
      if (!(await insertRunning(tx, tick))) throw new HasRun();
      const last = { last_run_at: now, last_run_id: run.id, last_status: null, last_error: null };
      await changeSchedule(tx, id, last);
      await passKillPoint("agent.schedule.commits");
    },
  });
}

/** Goes by without a run. */
async function pass(app: Needs, schedule: DueSchedule, due: Due, now: Date, reason: string): Promise<void> {
  const isFailure = due.tick !== undefined && !meant.has(reason);
  const status = isFailure ? "refused" : "skipped";
  await transaction(app.db, async (tx) => {
    const row = await moveOn(tx, schedule, due, now);
    if (due.tick) await insertTicks(tx, [{ ...tickOf(schedule, due.tick, now), status, reason }]);
    await changeSchedule(tx, schedule.id, { last_status: status, last_error: reason });
    if (isFailure) await countFailure(tx, { ...row, next_run_at: due.next ?? null }, reason);
  });
}

/** To the next time; those in between that nobody runs for are recorded. */
async function moveOn(tx: Db, schedule: DueSchedule, due: Due, now: Date) {
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
