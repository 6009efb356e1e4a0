/**
 * Schedules: runs of agents at times of a wall clock or at intervals. This folder owns the times and their outcomes.
 * The folder promises:
 * - Each time gets one run, with any number of server processes and after any crash.
 * - A time that was missed less than ten minutes ago still gets its run. Every other missed time is recorded.
 * - After ten consecutive failures, a schedule is disabled, and its owners are notified.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { type AgentRecord, getAgent, lockWritableAgent } from "../agents/agents.ts";
import { firstAlias } from "../agents/limits.ts";
import { invalidField } from "../errors.ts";
import { requireServedHeld } from "../workers/grant.ts";
import { scheduleLimitReached, scheduleNotFound } from "./errors.ts";
import { type Schedule, type ScheduleCreate, type ScheduleUpdate, toSchedule } from "./schema.ts";
import {
  changeSchedule,
  deleteSchedule,
  findView,
  insertSchedule,
  listViews,
  lockAndCount,
  lockSchedule,
  type ScheduleRow,
} from "./store.ts";
import { makeFindNext, type Plan, TimingError } from "./timing.ts";
import { isZone } from "./zones.ts";

type Needs = Pick<App, "db" | "clock">;

const schedulesMax = 50;

export async function list(app: Needs, actor: Actor, reference: string): Promise<{ items: Schedule[] }> {
  const agent = await getAgent(app.db, actor, reference);
  return { items: (await listViews(app.db, agent.id)).map(toSchedule) };
}

export async function get(app: Needs, actor: Actor, reference: string, id: string): Promise<Schedule> {
  return render(app.db, await getAgent(app.db, actor, reference), id);
}

export async function create(
  app: Needs,
  actor: Actor,
  reference: string,
  input: ScheduleCreate,
): Promise<Schedule> {
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const qualifier = input.qualifier ?? firstAlias;
    await requireServedHeld(tx, actor, agent, { qualifier, isInBody: qualifier !== firstAlias });
    const now = wholeSecond(app.clock.now());
    const plan = { schedule: input.schedule, timezone: input.timezone, anchor: now };
    const next = requireNext(plan, now);
    if ((await lockAndCount(tx, agent.id)) >= schedulesMax) throw scheduleLimitReached(schedulesMax);
    const id = newId("sch_");
    await insertSchedule(tx, {
      ...plan,
      id,
      workspace_id: agent.workspace_id,
      agent_id: agent.id,
      name: input.name ?? null,
      message: input.message,
      end_user_id: input.end_user_id ?? null,
      session: input.session ?? null,
      qualifier,
      next_run_at: next,
      last_run_at: null,
      last_run_id: null,
      last_status: null,
      last_error: null,
      disabled_reason: null,
      created_at: app.clock.now(),
    });
    await record(tx, actor, agent, "agent_schedule.created", { id, name: input.name ?? null });
    return render(tx, agent, id);
  });
}

/** Updates a schedule. Changed times apply from the time of the update. */
export async function update(
  app: Needs,
  actor: Actor,
  reference: string,
  id: string,
  input: ScheduleUpdate,
): Promise<Schedule> {
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    // A caller needs no further scope to disable a schedule.
    const row = await lockOwn(tx, agent, id);
    const qualifier = input.qualifier === undefined ? row.qualifier : (input.qualifier ?? firstAlias);
    const isInBody = qualifier !== row.qualifier;
    if (input.enabled !== false || isInBody)
      await requireServedHeld(tx, actor, agent, { qualifier, isInBody });
    const { enabled, ...said } = Object.fromEntries(
      Object.entries(input).filter(([, value]) => value !== undefined),
    ) as ScheduleUpdate;
    await changeSchedule(tx, id, {
      ...(said as Partial<ScheduleRow>),
      qualifier,
      ...timesOf(row, input, wholeSecond(app.clock.now())),
      ...(enabled === true && row.next_run_at === null
        ? { consecutive_failures: 0, disabled_reason: null }
        : {}),
    });
    await record(tx, actor, agent, "agent_schedule.updated", row, { fields: Object.keys(input) });
    return render(tx, agent, id);
  });
}

export async function remove(app: Needs, actor: Actor, reference: string, id: string): Promise<void> {
  const agent = await getAgent(app.db, actor, reference);
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteSchedule(tx, agent.id, id);
    if (!row) throw scheduleNotFound();
    await record(tx, actor, agent, "agent_schedule.deleted", row);
  });
}

/** Returns the next run time, if the change affects it. The time is null for a disabled schedule. */
function timesOf(row: ScheduleRow, input: ScheduleUpdate, now: Date): Partial<ScheduleRow> {
  const isOn = input.enabled ?? row.next_run_at !== null;
  const plan = {
    schedule: input.schedule ?? row.schedule,
    timezone: input.timezone ?? row.timezone,
    anchor: now,
  };
  const isSame = plan.schedule === row.schedule && plan.timezone === row.timezone;
  if (isSame && isOn === (row.next_run_at !== null)) return {};
  // The times of a disabled schedule are validated too, because the schedule can be enabled later.
  const next = requireNext(plan, now);
  return { anchor: now, next_run_at: isOn ? next : null };
}

function requireNext(plan: Plan, now: Date): Date {
  if (!isZone(plan.timezone))
    throw invalidField(["timezone"], "is not an IANA time zone; use Europe/Berlin, for example");
  try {
    const next = makeFindNext(plan)(now);
    if (next) return next;
  } catch (error) {
    throw error instanceof TimingError ? invalidField(["schedule"], error.message) : error;
  }
  throw invalidField(["schedule"], "never comes");
}

async function lockOwn(tx: Db, agent: AgentRecord, id: string): Promise<ScheduleRow> {
  const row = await lockSchedule(tx, id);
  if (row?.agent_id !== agent.id) throw scheduleNotFound();
  return row;
}

async function render(tx: Db, agent: AgentRecord, id: string): Promise<Schedule> {
  const view = await findView(tx, agent.id, id);
  if (!view) throw scheduleNotFound();
  return toSchedule(view);
}

async function record(
  tx: Db,
  actor: Actor,
  agent: AgentRecord,
  deed: string,
  { id, name }: Pick<ScheduleRow, "id" | "name">,
  detail: object = {},
): Promise<void> {
  const target = { kind: "agent_schedule", id, label: name ?? agent.name };
  await recordActivity(tx, actor, deed, target, agent.workspace_id, { agent: agent.name, ...detail });
}

function wholeSecond(at: Date): Date {
  return new Date(Math.floor(at.getTime() / 1000) * 1000);
}

/** Counts an agent's schedules that run one of these qualifiers. */
export async function countSchedules(
  db: Db,
  agentId: string,
  qualifiers: readonly string[],
): Promise<number> {
  return (await listViews(db, agentId)).filter(({ qualifier }) => qualifiers.includes(qualifier)).length;
}
