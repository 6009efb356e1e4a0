/** All SQL of sessions' machines. Callers have checked the access to the session. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentMachinesTable } from "./tables.ts";

export type MachineRow = Selectable<AgentMachinesTable>;

const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export function findMachine(db: Db, sessionId: string): Promise<MachineRow | undefined> {
  return db.selectFrom("agent_machines").selectAll().where("session_id", "=", sessionId).executeTakeFirst();
}

// ---- termination

/** Marks the machines of these sessions as ending. Returns the sessions that have a machine. */
export async function markEnding(tx: Db, sessionIds: readonly string[]): Promise<string[]> {
  const rows = await tx
    .updateTable("agent_machines")
    .set({ state: "ending", lost_in: null })
    .where("session_id", "=", anyOf(sessionIds))
    .where("state", "<>", "ending")
    .returning("session_id")
    .execute();
  return rows.map(({ session_id }) => session_id);
}

/** Marks the machines of all sessions of an agent. */
export async function markEndingOfAgent(tx: Db, agentId: string): Promise<string[]> {
  const rows = await tx
    .updateTable("agent_machines")
    .set({ state: "ending", lost_in: null })
    .where("session_id", "in", (eb) =>
      eb.selectFrom("agent_sessions").select("id").where("agent_id", "=", agentId),
    )
    .where("state", "<>", "ending")
    .returning("session_id")
    .execute();
  return rows.map(({ session_id }) => session_id);
}

/** Returns the CTE `machines`, which marks the machines of the rows `session`. */
export function markEndingRows(): RawBuilder<unknown> {
  return sql`machines as (
    update agent_machines set state = 'ending', lost_in = null from session
    where agent_machines.session_id = session.id and state <> 'ending' returning session_id)`;
}

/** Lists sessions that ended or were deleted and still have a machine. */
export async function findOrphans(db: Db, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_machines as m")
    .select("m.session_id")
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("agent_sessions as s")
            .select("s.id")
            .whereRef("s.id", "=", "m.session_id")
            .where("s.ended_at", "is", null),
        ),
      ),
    )
    .limit(limit)
    .execute();
  return rows.map(({ session_id }) => session_id);
}

export async function deleteMachine(
  db: Db,
  row: Pick<MachineRow, "session_id" | "sandbox_id">,
): Promise<void> {
  await db
    .deleteFrom("agent_machines")
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .execute();
}

// ---- use

/**
 * Marks the machine as used by a tool, so that it is not parked, and returns its row. Returns undefined if the session
 * has no usable machine.
 */
export function useMachine(
  db: Db,
  sessionId: string,
  use: { at: Date; parkAfterSeconds: number },
): Promise<MachineRow | undefined> {
  return db
    .updateTable("agent_machines")
    .set({ state: "awake", last_used_at: use.at, park_after_seconds: use.parkAfterSeconds })
    .where("session_id", "=", sessionId)
    .where("state", "in", ["awake", "parked"])
    .returningAll()
    .executeTakeFirst();
}

/** Locks the session so that it does not end before this transaction. Returns false if the session has ended. */
export async function lockLiveSession(tx: Db, sessionId: string): Promise<boolean> {
  const row = await tx
    .selectFrom("agent_sessions")
    .select("id")
    .where("id", "=", sessionId)
    .where("ended_at", "is", null)
    .forShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** Sets the session's machine. Replaces only the machine `old`; returns false if a concurrent call was first. */
export async function putMachine(
  tx: Db,
  machine: Pick<
    MachineRow,
    "session_id" | "workspace_id" | "sandbox_id" | "park_after_seconds" | "last_used_at"
  >,
  old: string | undefined,
): Promise<boolean> {
  const row = { ...machine, state: "awake" as const, lost_in: null };
  const { numInsertedOrUpdatedRows } = await tx
    .insertInto("agent_machines")
    .values(row)
    .onConflict((conflict) =>
      conflict
        .column("session_id")
        .doUpdateSet(row)
        .where("agent_machines.sandbox_id", "=", old ?? "")
        .where("agent_machines.state", "<>", "ending"),
    )
    .executeTakeFirst();
  return (numInsertedOrUpdatedRows ?? 0n) > 0n;
}

/** Marks the machine as lost in this run, which fails because of the loss. */
export async function markLost(
  db: Db,
  row: Pick<MachineRow, "session_id" | "sandbox_id">,
  runId: string,
): Promise<void> {
  await db
    .updateTable("agent_machines")
    .set({ state: "lost", lost_in: runId })
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .where("state", "in", ["awake", "parking", "parked"])
    .execute();
}

/**
 * True if the session's run may use the machine. A run that waits for a question keeps its process, and other calls of
 * its step may use the machine.
 */
const isAtWork = sql<boolean>`(r.status in ('queued', 'running')
  or (r.status = 'pending_approval' and r.process_id is not null))`;

/** Lists the sandboxes of sessions with an active run. */
export async function findInUse(db: Db): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_machines as m")
    .innerJoin("agent_runs as r", "r.session_id", "m.session_id")
    .select("m.sandbox_id")
    .where("m.state", "=", "awake")
    .where(isAtWork)
    .where("r.waits_turn", "=", false)
    .execute();
  return rows.map(({ sandbox_id }) => sandbox_id);
}

// ---- parking

export type ParkingRow = Pick<MachineRow, "session_id" | "sandbox_id">;

const goesOn = sql<boolean>`exists (
  select from agent_runs as r where r.session_id = agent_machines.session_id and ${isAtWork}
    and not r.waits_turn)`;

/** Time since which the machine is idle: its last use, or the last event of the session's newest run. */
const idleSince = sql<Date>`greatest(last_used_at, (
  select e.at from agent_runs as r join agent_events as e on e.run_id = r.id and e.seq = r.last_event_id
  where r.session_id = agent_machines.session_id order by r.created_at desc limit 1))`;

const isIdle = (now: Date) =>
  sql<boolean>`not ${goesOn} and ${idleSince} <= ${now}::timestamptz - make_interval(secs => park_after_seconds)`;

/** Lists machines that are idle for longer than their config allows, the longest idle first. */
export function findIdle(
  db: Db,
  now: Date,
  page: { except: readonly string[]; limit: number },
): Promise<ParkingRow[]> {
  return db
    .selectFrom("agent_machines")
    .select(["session_id", "sandbox_id"])
    .where("state", "=", "awake")
    .where("last_used_at", "<=", sql<Date>`${now}::timestamptz - make_interval(secs => park_after_seconds)`)
    .where("session_id", "<>", sql<string>`all(${sql.val([...page.except])}::text[])`)
    .where(isIdle(now))
    .orderBy("last_used_at")
    .limit(page.limit)
    .execute();
}

/** Marks the machine as parking. Returns false if a tool call used the machine first. */
export async function markParking(db: Db, row: ParkingRow, now: Date): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("agent_machines")
    .set({ state: "parking" })
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .where("state", "=", "awake")
    .where("last_used_at", "<=", sql<Date>`${now}::timestamptz - make_interval(secs => park_after_seconds)`)
    .where(isIdle(now))
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

export function findParking(db: Db): Promise<ParkingRow[]> {
  return db
    .selectFrom("agent_machines")
    .select(["session_id", "sandbox_id"])
    .where("state", "=", "parking")
    .execute();
}

export async function endParking(db: Db, row: ParkingRow, state: "parked" | "awake"): Promise<void> {
  await db
    .updateTable("agent_machines")
    .set({ state })
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .where("state", "=", "parking")
    .execute();
}

// ---- view of a session

export interface MachineView {
  session_id: string;
  /** True if the config of the session's version has a machine. */
  is_wanted: boolean | null;
  /** Id of the sandbox. Null if the session has no machine. */
  sandbox_id: string | null;
  state: MachineRow["state"] | null;
}

export function findViews(db: Db, sessionIds: readonly string[]): Promise<MachineView[]> {
  return db
    .selectFrom("agent_sessions as s")
    .innerJoin("agent_versions as v", (join) =>
      join.onRef("v.agent_id", "=", "s.agent_id").onRef("v.version", "=", "s.version"),
    )
    .leftJoin("agent_machines as m", "m.session_id", "s.id")
    .select([
      "s.id as session_id",
      sql<boolean | null>`(v.config -> 'vm' ->> 'enabled')::boolean`.as("is_wanted"),
      "m.sandbox_id",
      "m.state",
    ])
    .where("s.id", "=", anyOf(sessionIds))
    .execute();
}
