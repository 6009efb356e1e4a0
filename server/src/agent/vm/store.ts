/** All SQL of sessions' machines. A session's owner was asked for by whoever comes here. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentMachinesTable } from "./tables.ts";

export type MachineRow = Selectable<AgentMachinesTable>;

const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export function findMachine(db: Db, sessionId: string): Promise<MachineRow | undefined> {
  return db.selectFrom("agent_machines").selectAll().where("session_id", "=", sessionId).executeTakeFirst();
}

// ---- the end

/** Their sessions, of those that have one; it ends from here on. */
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

/** Of a statement with rows `session`: the rows `machines`. */
export function markedEnding(): RawBuilder<unknown> {
  return sql`machines as (
    update agent_machines set state = 'ending', lost_in = null from session
    where agent_machines.session_id = session.id and state <> 'ending' returning session_id)`;
}

/** Of sessions that ended, or are not there any more, and whose machine may be. */
export async function findLeft(db: Db, limit: number): Promise<string[]> {
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

// ---- in use

/** A tool is about to use it: from here on it is not parked. Undefined where there is none that could be used now. */
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

/** Whether the session lives; it goes on to until this transaction ends. */
export async function holdSession(tx: Db, sessionId: string): Promise<boolean> {
  const row = await tx
    .selectFrom("agent_sessions")
    .select("id")
    .where("id", "=", sessionId)
    .where("ended_at", "is", null)
    .forShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** The session's machine from now on, in place of `old` alone. False where somebody else was first. */
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

/** A run is told of it. */
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

/** A run whose call asks a person keeps its process, and other calls of the step may use the machine. */
const isAtWork = sql<boolean>`(r.status in ('queued', 'running')
  or (r.status = 'pending_approval' and r.process_id is not null))`;

/** The sandboxes of sessions in which a run goes on. */
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

export type Parked = Pick<MachineRow, "session_id" | "sandbox_id">;

const goesOn = sql<boolean>`exists (
  select from agent_runs as r where r.session_id = agent_machines.session_id and ${isAtWork}
    and not r.waits_turn)`;

/** Until when nothing was done in it and no run of its session did anything: the newest run's last event says that. */
const idleSince = sql<Date>`greatest(last_used_at, (
  select e.at from agent_runs as r join agent_events as e on e.run_id = r.id and e.seq = r.last_event_id
  where r.session_id = agent_machines.session_id order by r.created_at desc limit 1))`;

const isIdle = (now: Date) =>
  sql<boolean>`not ${goesOn} and ${idleSince} <= ${now}::timestamptz - make_interval(secs => park_after_seconds)`;

/** Those that nobody used for as long as their config says, the one that rests longest first. */
export function findIdle(
  db: Db,
  now: Date,
  page: { except: readonly string[]; limit: number },
): Promise<Parked[]> {
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

/** False where a tool was first. */
export async function markParking(db: Db, row: Parked, now: Date): Promise<boolean> {
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

export function findParking(db: Db): Promise<Parked[]> {
  return db
    .selectFrom("agent_machines")
    .select(["session_id", "sandbox_id"])
    .where("state", "=", "parking")
    .execute();
}

export async function endParking(db: Db, row: Parked, state: "parked" | "awake"): Promise<void> {
  await db
    .updateTable("agent_machines")
    .set({ state })
    .where("session_id", "=", row.session_id)
    .where("sandbox_id", "=", row.sandbox_id)
    .where("state", "=", "parking")
    .execute();
}

// ---- as their sessions show them

export interface MachineView {
  session_id: string;
  /** Whether its version gives it one. */
  is_wanted: boolean | null;
  /** Null where there is none. */
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
