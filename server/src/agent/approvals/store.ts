/** All SQL of approvals. Whoever decides has asked for the run's row first, and for the approval's after it. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#db/db.ts";
import { storableJson } from "../storable.ts";
import type { ApprovalStatus } from "./states.ts";
import type { AgentApprovalsTable, Decider } from "./tables.ts";

export type ApprovalRow = Selectable<AgentApprovalsTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;
const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export async function insertApproval(tx: Db, approval: Insertable<AgentApprovalsTable>): Promise<void> {
  await tx.insertInto("agent_approvals").values(approval).execute();
}

export function findApproval(tx: Db, runId: string, id: string): Promise<ApprovalRow | undefined> {
  return tx
    .selectFrom("agent_approvals")
    .selectAll()
    .where("run_id", "=", runId)
    .where("id", "=", id)
    .executeTakeFirst();
}

export function approvalsOfRun(db: Db, runId: string): Promise<ApprovalRow[]> {
  return db.selectFrom("agent_approvals").selectAll().where("run_id", "=", runId).execute();
}

/** What a run shows of what it waits for. */
export type PendingRow = Pick<ApprovalRow, "id" | "run_id" | "tool" | "arguments" | "expires_at">;

/** What each of these runs waits for. Arguments beyond `argumentsMaxBytes` are left out. */
export function pendingOfRuns(
  db: Db,
  runIds: readonly string[],
  argumentsMaxBytes: number | null = null,
): Promise<PendingRow[]> {
  return db
    .selectFrom("agent_approvals")
    .select([
      "id",
      "run_id",
      "tool",
      "expires_at",
      sql<ApprovalRow["arguments"]>`case when ${argumentsMaxBytes}::integer is null
        or octet_length(arguments::text) <= ${argumentsMaxBytes}::integer then arguments end`.as("arguments"),
    ])
    .where("run_id", "=", anyOf(runIds))
    .where("status", "=", "pending")
    .execute();
}

export async function closeApproval(
  tx: Db,
  id: string,
  change: { status: ApprovalStatus; at: Date; by: Decider | null },
): Promise<void> {
  await tx
    .updateTable("agent_approvals")
    .set({
      status: change.status,
      decided_at: change.at,
      decided_by: change.by && storableJson(change.by),
    })
    .where("id", "=", id)
    .execute();
}

/** Those whose time is up, the oldest first. */
export function findDue(db: Db, now: Date, limit: number): Promise<Pick<ApprovalRow, "id" | "run_id">[]> {
  return db
    .selectFrom("agent_approvals")
    .select(["id", "run_id"])
    .where("status", "=", "pending")
    .where("expires_at", "<=", now)
    .where("workspace_id", "not in", (eb) =>
      eb.selectFrom("workspaces").select("id").where("held_since", "is not", null),
    )
    .orderBy("expires_at")
    .limit(limit)
    .execute();
}

/** True if the approval's workspace is held, so its deadlines have not moved yet. */
export async function isHeld(db: Db, { workspace_id }: Pick<ApprovalRow, "workspace_id">): Promise<boolean> {
  const row = await db
    .selectFrom("workspaces")
    .select("id")
    .where("id", "=", workspace_id)
    .where("held_since", "is not", null)
    .executeTakeFirst();
  return row !== undefined;
}

/** Moves the deadlines of a workspace's undecided approvals. */
export async function moveDeadlines(tx: Db, workspaceId: string, ms: number): Promise<void> {
  await tx
    .updateTable("agent_approvals")
    .set({ expires_at: sql<Date>`expires_at + make_interval(secs => ${ms / 1000})` })
    .where("workspace_id", "=", workspaceId)
    .where("status", "=", "pending")
    .execute();
}

const waiting = (db: Db, workspaceIds: readonly string[], now: Date) =>
  db
    .selectFrom("agent_approvals")
    .where("agent_approvals.status", "=", "pending")
    .where("agent_approvals.workspace_id", "=", among(workspaceIds))
    .where("agent_approvals.expires_at", ">", now);

export async function countWaiting(db: Db, workspaceIds: readonly string[], now: Date): Promise<number> {
  const { count } = await waiting(db, workspaceIds, now)
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** With the agent's name and whom the run is with. Arguments beyond `argumentsMaxBytes` are left out. */
export function listWaiting(
  db: Db,
  workspaceIds: readonly string[],
  options: { now: Date; limit: number; argumentsMaxBytes: number },
) {
  // First which ones, then what they say: else the arguments of all of them are sorted.
  const first = waiting(db, workspaceIds, options.now)
    .select("id")
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(options.limit);
  return db
    .selectFrom("agent_approvals")
    .innerJoin("agent_runs", "agent_runs.id", "agent_approvals.run_id")
    .innerJoin("agents", "agents.id", "agent_runs.agent_id")
    .select([
      "agent_approvals.id",
      "agent_approvals.run_id",
      "agent_approvals.call_id",
      "agent_approvals.tool",
      "agent_approvals.created_at",
      "agent_approvals.expires_at",
      "agent_runs.session_id",
      "agent_runs.end_user_id",
      "agents.name as agent",
      sql<Record<string, unknown> | null>`case when octet_length(agent_approvals.arguments::text)
        <= ${options.argumentsMaxBytes} then agent_approvals.arguments end`.as("arguments"),
    ])
    .where("agent_approvals.id", "in", first)
    .orderBy("agent_approvals.created_at", "desc")
    .orderBy("agent_approvals.id", "desc")
    .execute();
}
export type WaitingRow = Awaited<ReturnType<typeof listWaiting>>[number];

export async function agentOf(db: Db, runId: string): Promise<string> {
  const { name } = await db
    .selectFrom("agent_runs")
    .innerJoin("agents", "agents.id", "agent_runs.agent_id")
    .select("agents.name")
    .where("agent_runs.id", "=", runId)
    .executeTakeFirstOrThrow();
  return name;
}

export async function forgetArguments(tx: Db, runIds: readonly string[]): Promise<void> {
  await tx
    .updateTable("agent_approvals")
    .set({ arguments: "null", decided_by: sql`(decided_by::jsonb - 'reason')::json` })
    .where("run_id", "=", anyOf(runIds))
    .execute();
}

export async function deleteCancelled(tx: Db, runId: string): Promise<void> {
  await tx
    .deleteFrom("agent_approvals")
    .where("run_id", "=", runId)
    .where("status", "=", "cancelled")
    .execute();
}
