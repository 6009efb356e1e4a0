/** All SQL of the waits for sign-ins. Callers have checked the access to the run. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentSignInWaitsTable } from "../tables.ts";

export type WaitRow = Selectable<AgentSignInWaitsTable>;
export type WaitOutcome = Exclude<WaitRow["status"], "waiting">;

const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

/** Inserts waits. A second wait of the same call keeps the deadline of the first. */
export async function putWaits(tx: Db, waits: readonly Insertable<AgentSignInWaitsTable>[]): Promise<void> {
  await tx
    .insertInto("agent_sign_in_waits")
    .values([...waits])
    .onConflict((conflict) =>
      conflict.column("call_id").doUpdateSet((eb) => ({
        toolset_id: eb.ref("excluded.toolset_id"),
        end_user_id: eb.ref("excluded.end_user_id"),
        connection_id: eb.ref("excluded.connection_id"),
        status: "waiting",
      })),
    )
    .execute();
}

export function waitsOf(db: Db, runId: string): Promise<WaitRow[]> {
  return db.selectFrom("agent_sign_in_waits").selectAll().where("run_id", "=", runId).execute();
}

/** Lists the open waits of these runs, the earliest deadline first. */
export function findOpenWaits(db: Db, runIds: readonly string[]): Promise<WaitRow[]> {
  return db
    .selectFrom("agent_sign_in_waits")
    .selectAll()
    .where("run_id", "=", anyOf(runIds))
    .where("status", "=", "waiting")
    .orderBy("expires_at")
    .orderBy("call_id")
    .execute();
}

/**
 * Selects open waits that are over, with their outcome. A wait is cancelled if the toolset is deleted, or if this
 * person can no longer sign in to it. A suspension of the workspace moves the deadline.
 */
const over = (db: Db, now: Date) =>
  db
    .selectFrom("agent_sign_in_waits as w")
    .leftJoin("agent_toolsets as t", "t.id", "w.toolset_id")
    .leftJoin("agent_connections as c", (join) =>
      join.onRef("c.toolset_id", "=", "w.toolset_id").onRef("c.end_user_id", "=", "w.end_user_id"),
    )
    .innerJoin("workspaces as o", "o.id", "w.workspace_id")
    .where("w.status", "=", "waiting")
    .where(sql<boolean>`(${isConnected} or ${isVoid} or (w.expires_at <= ${now} and o.held_since is null))`);

const isConnected = sql<boolean>`(c.status = 'connected' and c.id is distinct from w.connection_id)`;
const isVoid = sql<boolean>`(t.id is null or t.auth_type <> 'oauth' or not t.oauth_per_end_user)`;

export async function findOverRuns(db: Db, now: Date, limit: number): Promise<string[]> {
  const rows = await over(db, now)
    .select("w.run_id")
    .groupBy("w.run_id")
    .orderBy((eb) => eb.fn.min("w.expires_at"))
    .limit(limit)
    .execute();
  return rows.map(({ run_id }) => run_id);
}

export type OverWait = Pick<WaitRow, "call_id" | "toolset_id" | "end_user_id"> & { outcome: WaitOutcome };

export function findOverWaitsOf(tx: Db, runId: string, now: Date): Promise<OverWait[]> {
  return over(tx, now)
    .select([
      "w.call_id",
      "w.toolset_id",
      "w.end_user_id",
      sql<WaitOutcome>`case when ${isConnected} then 'connected' when ${isVoid} then 'cancelled'
        else 'expired' end`.as("outcome"),
    ])
    .where("w.run_id", "=", runId)
    .orderBy("w.call_id")
    .execute();
}

export async function endWaits(tx: Db, callIds: readonly string[], status: WaitOutcome): Promise<void> {
  await tx
    .updateTable("agent_sign_in_waits")
    .set({ status })
    .where("call_id", "=", anyOf(callIds))
    .where("status", "=", "waiting")
    .execute();
}

/** Deletes a run's cancelled waits. The resumed run makes their calls again. */
export async function deleteCancelledWaits(tx: Db, runId: string): Promise<void> {
  await tx
    .deleteFrom("agent_sign_in_waits")
    .where("run_id", "=", runId)
    .where("status", "=", "cancelled")
    .execute();
}

/** Moves the deadlines of a workspace's open waits. */
export async function moveDeadlines(tx: Db, workspaceId: string, ms: number): Promise<void> {
  await tx
    .updateTable("agent_sign_in_waits")
    .set({ expires_at: sql<Date>`expires_at + make_interval(secs => ${ms / 1000})` })
    .where("workspace_id", "=", workspaceId)
    .where("status", "=", "waiting")
    .execute();
}
