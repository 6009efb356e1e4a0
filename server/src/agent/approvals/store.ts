/** All SQL of approvals. A decision locks the run's row first, and then the approval's row. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import { storableJson } from "../storable.ts";
import type { ApprovalStatus } from "./states.ts";
import type { AgentApprovalsTable, Decider } from "./tables.ts";

export type ApprovalRow = Selectable<AgentApprovalsTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;
const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

export async function insertApprovals(
  tx: Db,
  approvals: readonly Insertable<AgentApprovalsTable>[],
): Promise<void> {
  await tx
    .insertInto("agent_approvals")
    .values([...approvals])
    .execute();
}

export function findApproval(tx: Db, runId: string, id: string): Promise<ApprovalRow | undefined> {
  return tx
    .selectFrom("agent_approvals")
    .selectAll()
    .where("run_id", "=", runId)
    .where("id", "=", id)
    .executeTakeFirst();
}

/** Returns the approvals of the run's calls, without the questions of tool servers. */
export function approvalsOfRun(db: Db, runId: string): Promise<ApprovalRow[]> {
  return db
    .selectFrom("agent_approvals")
    .selectAll()
    .where("run_id", "=", runId)
    .where("kind", "=", "call")
    .execute();
}

/** Columns of a pending approval that a run shows. */
export type PendingRow = Pick<
  ApprovalRow,
  "id" | "run_id" | "kind" | "tool" | "arguments" | "question" | "expires_at"
>;

/**
 * Lists the pending approvals of these runs, in the order of the calls. Omits further arguments and questions after a
 * run's arguments and questions exceed `argumentsMaxBytes` together.
 */
export function pendingOfRuns(
  db: Db,
  runIds: readonly string[],
  argumentsMaxBytes: number | null = null,
): Promise<PendingRow[]> {
  const isShort = sql`(${argumentsMaxBytes}::integer is null
    or sum(octet_length(a.arguments::text) + coalesce(octet_length(a.question::text), 0))
      over (partition by a.run_id order by c.position, a.created_at, a.id) <= ${argumentsMaxBytes}::integer)`;
  return db
    .selectFrom("agent_approvals as a")
    .innerJoin("agent_tool_calls as c", "c.id", "a.call_id")
    .select([
      "a.id",
      "a.run_id",
      "a.kind",
      "a.tool",
      "a.expires_at",
      sql<ApprovalRow["arguments"]>`case when ${isShort} then a.arguments end`.as("arguments"),
      sql<ApprovalRow["question"]>`case when ${isShort} then a.question end`.as("question"),
    ])
    .where("a.run_id", "=", anyOf(runIds))
    .where("a.status", "=", "pending")
    .orderBy("a.run_id")
    .orderBy("c.position")
    .orderBy("a.created_at")
    .orderBy("a.id")
    .execute();
}

/** Lists the ids of a run's pending approvals, in the order of the calls. */
export async function pendingIds(db: Db, runId: string): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_approvals as a")
    .innerJoin("agent_tool_calls as c", "c.id", "a.call_id")
    .select("a.id")
    .where("a.run_id", "=", runId)
    .where("a.status", "=", "pending")
    .orderBy("c.position")
    .execute();
  return rows.map(({ id }) => id);
}

export async function approvalExists(db: Db, id: string): Promise<boolean> {
  const row = await db.selectFrom("agent_approvals").select("id").where("id", "=", id).executeTakeFirst();
  return row !== undefined;
}

export async function isPending(db: Db, id: string): Promise<boolean> {
  const row = await db
    .selectFrom("agent_approvals")
    .select("id")
    .where("id", "=", id)
    .where("status", "=", "pending")
    .executeTakeFirst();
  return row !== undefined;
}

export async function closeApprovals(
  tx: Db,
  ids: readonly string[],
  change: {
    status: ApprovalStatus;
    at: Date;
    by: Decider | null;
    approvedArguments?: Record<string, unknown> | undefined;
    content?: Record<string, unknown> | undefined;
  },
): Promise<void> {
  const { status, at, by, approvedArguments: changed, content } = change;
  await tx
    .updateTable("agent_approvals")
    .set({
      status,
      decided_at: at,
      decided_by: by && storableJson(by),
      parameters: null,
      ...(changed === undefined ? {} : { approved_arguments: storableJson(changed) }),
      ...(content === undefined ? {} : { content: storableJson(content) }),
    })
    .where("id", "=", anyOf(ids))
    .execute();
}

/**
 * Returns a response to a question, and deletes its content in the same statement. Returns undefined if the question is
 * pending.
 */
export async function takeAnswer(
  db: Db,
  id: string,
): Promise<Pick<ApprovalRow, "status" | "content"> | undefined> {
  const { rows } = await sql<Pick<ApprovalRow, "status" | "content">>`
    with found as (
      select id, status, content from agent_approvals where id = ${id} and status <> 'pending' for update),
    taken as (
      update agent_approvals set content = null from found
      where agent_approvals.id = found.id and found.content is not null)
    select status, content from found`.execute(db);
  return rows[0];
}

/** Deletes the content of a run's answers that no process has read. */
export async function deleteContents(db: Db, runId: string): Promise<void> {
  await db
    .updateTable("agent_approvals")
    .set({ content: null })
    .where("run_id", "=", runId)
    .where("content", "is not", null)
    .execute();
}

const late = (db: Db, now: Date) =>
  db
    .selectFrom("agent_approvals")
    .where("status", "=", "pending")
    .where("expires_at", "<=", now)
    // The deadlines of a suspended workspace move when the suspension ends.
    .where("workspace_id", "not in", (eb) =>
      eb.selectFrom("workspaces").select("id").where("held_since", "is not", null),
    );

/** Lists runs with late approvals, in the order of their deadlines. */
export async function findLateRuns(db: Db, now: Date, limit: number): Promise<string[]> {
  const rows = await late(db, now)
    .select("run_id")
    .groupBy("run_id")
    .orderBy((eb) => eb.fn.min("expires_at"))
    .limit(limit)
    .execute();
  return rows.map(({ run_id }) => run_id);
}

export function lateOfRun(
  tx: Db,
  runId: string,
  now: Date,
): Promise<Pick<ApprovalRow, "id" | "tool" | "on_expire">[]> {
  return late(tx, now)
    .select(["id", "tool", "on_expire"])
    .where("run_id", "=", runId)
    .orderBy("expires_at")
    .orderBy("id")
    .execute();
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

/**
 * Lists approvals with the names of their agents and the end users of their runs. Omits arguments beyond
 * `argumentsMaxBytes`.
 */
export function listWaiting(
  db: Db,
  workspaceIds: readonly string[],
  options: { now: Date; limit: number; argumentsMaxBytes: number },
) {
  // Selects the ids first. Otherwise the sort would include the arguments of all rows.
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
      "agent_approvals.kind",
      "agent_approvals.tool",
      "agent_approvals.question",
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

/** Deletes the approvals' texts together with the runs' text. */
export async function deleteApprovalTexts(tx: Db, runIds: readonly string[]): Promise<void> {
  await tx
    .updateTable("agent_approvals")
    .set({
      arguments: "null",
      approved_arguments: null,
      question: null,
      content: null,
      decided_by: sql`(decided_by::jsonb - '{reason,answer}'::text[])::json`,
    })
    .where("run_id", "=", anyOf(runIds))
    .execute();
}

/** Deletes a run's undecided approvals. The resumed run requests new approvals. */
export async function deleteCancelledApprovals(tx: Db, runId: string): Promise<void> {
  await tx
    .deleteFrom("agent_approvals")
    .where("run_id", "=", runId)
    .where("status", "=", "cancelled")
    .execute();
}
