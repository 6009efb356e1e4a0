/** All SQL of schedules and their ticks. Access to an agent includes its schedules. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { RunStatus } from "../runs/states.ts";
import type { AgentSchedulesTable, AgentScheduleTicksTable } from "./tables.ts";

export type ScheduleRow = Selectable<AgentSchedulesTable>;
/** A schedule with the outcome of its last run. */
export type ScheduleView = ScheduleRow & { run_status: RunStatus | null; run_error: string | null };
export type NewTick = Insertable<AgentScheduleTicksTable>;

/** Counts the agent's schedules, and blocks other creations for the agent until the transaction ends. */
export async function lockAndCount(tx: Db, agentId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${agentId}, 44))`.execute(tx);
  const { count } = await tx
    .selectFrom("agent_schedules")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("agent_id", "=", agentId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export async function insertSchedule(tx: Db, schedule: Insertable<AgentSchedulesTable>): Promise<void> {
  await tx.insertInto("agent_schedules").values(schedule).execute();
}

const views = (db: Db, agentId: string) =>
  db
    .selectFrom("agent_schedules as s")
    .leftJoin("agent_runs as r", "r.id", "s.last_run_id")
    .selectAll("s")
    .select(["r.status as run_status", "r.error_code as run_error"])
    .where("s.agent_id", "=", agentId);

export function findView(db: Db, agentId: string, id: string): Promise<ScheduleView | undefined> {
  return views(db, agentId).where("s.id", "=", id).executeTakeFirst();
}

export function listViews(db: Db, agentId: string): Promise<ScheduleView[]> {
  return views(db, agentId).orderBy("s.created_at", "desc").orderBy("s.id", "desc").execute();
}

/** Locks the schedule's row until the transaction ends, and returns the row. */
export function lockSchedule(tx: Db, id: string): Promise<ScheduleRow | undefined> {
  return tx.selectFrom("agent_schedules").selectAll().where("id", "=", id).forUpdate().executeTakeFirst();
}

export async function changeSchedule(
  tx: Db,
  id: string,
  change: Partial<Omit<ScheduleRow, "id" | "workspace_id" | "agent_id" | "created_at">>,
): Promise<void> {
  await tx
    .updateTable("agent_schedules")
    // At least one column is set, because SQL has no empty update.
    .set({ ...change, id })
    .where("id", "=", id)
    .execute();
}

export function deleteSchedule(tx: Db, agentId: string, id: string): Promise<ScheduleRow | undefined> {
  return tx
    .deleteFrom("agent_schedules")
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .returningAll()
    .executeTakeFirst();
}

/** Deletes schedules that run for this end user. Returns the ids of the deleted schedules. */
export async function deleteSchedulesOf(tx: Db, agentId: string, endUserId: string): Promise<string[]> {
  const rows = await tx
    .deleteFrom("agent_schedules")
    .where("agent_id", "=", agentId)
    .where("end_user_id", "=", endUserId)
    .returning("id")
    .execute();
  return rows.map(({ id }) => id);
}

// ---- due schedules

export type DueSchedule = ScheduleRow & { next_run_at: Date; agent_name: string; worker_id: string };

/** Lists due schedules, the longest overdue first. */
export async function findDue(db: Db, now: Date, limit: number): Promise<DueSchedule[]> {
  const rows = await db
    .selectFrom("agent_schedules as s")
    .innerJoin("agents as a", "a.id", "s.agent_id")
    .selectAll("s")
    .select(["a.name as agent_name", "a.worker_id"])
    .where("s.next_run_at", "<=", now)
    .orderBy("s.next_run_at")
    .limit(limit)
    .execute();
  return rows as DueSchedule[];
}

export async function findNextDue(db: Db): Promise<Date | undefined> {
  const row = await db
    .selectFrom("agent_schedules")
    .select("next_run_at")
    .where("next_run_at", "is not", null)
    .orderBy("next_run_at")
    .limit(1)
    .executeTakeFirst();
  return row?.next_run_at ?? undefined;
}

/**
 * Locks the schedule if it is still due at this time, and returns its row. Returns undefined if another process handled
 * this time.
 */
export async function lockDue(tx: Db, { id, next_run_at }: DueSchedule): Promise<ScheduleRow | undefined> {
  return tx
    .selectFrom("agent_schedules")
    .selectAll()
    .where("id", "=", id)
    .where("next_run_at", "=", next_run_at)
    .forUpdate()
    .executeTakeFirst();
}

/** Inserts ticks. An existing tick of the same time stays. */
export async function insertTicks(tx: Db, ticks: readonly NewTick[]): Promise<void> {
  if (ticks.length === 0) return;
  await tx
    .insertInto("agent_schedule_ticks")
    .values([...ticks])
    .onConflict((conflict) => conflict.doNothing())
    .execute();
}

/** Inserts the tick of a run. Returns false if this time already has a tick. */
export async function insertRunning(tx: Db, tick: NewTick): Promise<boolean> {
  const row = await tx
    .insertInto("agent_schedule_ticks")
    .values(tick)
    .onConflict((conflict) => conflict.doNothing())
    .returning("tick")
    .executeTakeFirst();
  return row !== undefined;
}

export interface EndedTick {
  schedule_id: string;
  tick: Date;
  /** Status of the run. Null if the run was deleted. */
  run_status: RunStatus | null;
  run_error: string | null;
  /** Number of times the run was resumed after a failure. */
  run_resumes: number | null;
}

/** Lists uncounted ticks whose runs have ended, in the order in which the runs ended. */
export function findEnded(db: Db, limit: number): Promise<EndedTick[]> {
  return db
    .selectFrom("agent_schedule_ticks as t")
    .leftJoin("agent_runs as r", "r.id", "t.run_id")
    .select([
      "t.schedule_id",
      "t.tick",
      "r.status as run_status",
      "r.error_code as run_error",
      "r.resumes as run_resumes",
    ])
    .where("t.status", "=", "running")
    .where((eb) => eb.or([eb("r.id", "is", null), eb("r.status", "in", ["completed", "failed"])]))
    .orderBy("r.finished_at")
    .limit(limit)
    .execute();
}

/** Returns the tick that started a run. */
export function findTickOf(
  db: Db,
  runId: string,
): Promise<Pick<Selectable<AgentScheduleTicksTable>, "schedule_id" | "tick" | "status"> | undefined> {
  return db
    .selectFrom("agent_schedule_ticks")
    .select(["schedule_id", "tick", "status"])
    .where("run_id", "=", runId)
    .executeTakeFirst();
}

/**
 * Marks the tick as uncounted, so that it counts again after the run's next end. The caller holds the lock on the
 * schedule's row.
 */
export async function reopenTick(
  tx: Db,
  { schedule_id, tick }: Pick<EndedTick, "schedule_id" | "tick">,
): Promise<void> {
  await tx
    .updateTable("agent_schedule_ticks")
    .set({ status: "running", reason: null })
    .where("schedule_id", "=", schedule_id)
    .where("tick", "=", tick)
    .execute();
}

/** Returns true if a later tick completed, so that this tick is no consecutive failure. */
export async function hasCompletedAfter(
  tx: Db,
  { schedule_id, tick }: Pick<EndedTick, "schedule_id" | "tick">,
): Promise<boolean> {
  const row = await tx
    .selectFrom("agent_schedule_ticks")
    .select("tick")
    .where("schedule_id", "=", schedule_id)
    .where("tick", ">", tick)
    .where("status", "=", "completed")
    .limit(1)
    .executeTakeFirst();
  return row !== undefined;
}

/** Returns the number of failed ticks after this tick. */
export async function failuresAfter(
  tx: Db,
  { schedule_id, tick }: Pick<EndedTick, "schedule_id" | "tick">,
): Promise<number> {
  const { count } = await tx
    .selectFrom("agent_schedule_ticks")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("schedule_id", "=", schedule_id)
    .where("tick", ">", tick)
    .where("status", "in", ["failed", "refused"])
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Stores the outcome of a tick. Returns false if the tick was already counted. */
export async function endTick(
  tx: Db,
  { schedule_id, tick }: Pick<EndedTick, "schedule_id" | "tick">,
  status: "completed" | "failed" | "stopped",
  reason: string | null,
): Promise<boolean> {
  const row = await tx
    .updateTable("agent_schedule_ticks")
    .set({ status, reason })
    .where("schedule_id", "=", schedule_id)
    .where("tick", "=", tick)
    .where("status", "=", "running")
    .returning("tick")
    .executeTakeFirst();
  return row !== undefined;
}

export async function pruneTicks(db: Db, before: Date): Promise<void> {
  await db
    .deleteFrom("agent_schedule_ticks")
    .where("status", "<>", "running")
    .where("at", "<", before)
    .execute();
}
