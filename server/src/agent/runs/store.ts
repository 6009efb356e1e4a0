/** All SQL of runs, their steps and their events. The caller's workspaces are an argument of every function. */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Position } from "../cursor.ts";
import { deleteApprovalTexts } from "../approvals/store.ts";
import { eraseCallTexts } from "../calls/store.ts";
import type { Claim } from "./journal/claim.ts";
import type { RunStatus } from "./states.ts";
import type { AgentEventsTable, AgentRunsTable, StepPrompt } from "./tables.ts";
import { textEvents, textFields } from "./journal/text-events.ts";

export type RunRow = Selectable<AgentRunsTable>;
export type EventRow = Selectable<AgentEventsTable>;

/** Sign-in link, as stored in an event of the run. */
export interface SignInLink {
  toolset_id: string;
  end_user_id: string | null;
  authorize_url: string;
  expires_in: number;
  at: string;
}

/** A run with the agent's name. `sign_ins` contains the last link of each toolset, and is set for a single run only. */
export type RunView = RunRow & { agent: string; sign_ins?: SignInLink[] | null };

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;
const anyOf = (values: readonly string[]) => sql<string>`any(${sql.val([...values])}::text[])`;

// ---- requests

/** Lists the active runs of these sessions. In each session, the current run comes first, then the waiting runs. */
export function findActive(
  db: Db,
  sessionIds: readonly string[],
): Promise<Pick<RunRow, "id" | "session_id" | "status" | "waits_turn">[]> {
  return db
    .selectFrom("agent_runs")
    .select(["id", "session_id", "status", "waits_turn"])
    .where("session_id", "=", anyOf(sessionIds))
    .where("status", "in", ["queued", "running", "pending_approval"])
    .orderBy("waits_turn")
    .orderBy("created_at")
    .execute();
}

/** Lists an agent's active runs, oldest first. */
export async function findActiveOfAgent(db: Db, agentId: string, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_runs")
    .select("id")
    .where("agent_id", "=", agentId)
    .where("status", "in", ["queued", "running", "pending_approval"])
    .orderBy("created_at")
    .limit(limit)
    .execute();
  return rows.map(({ id }) => id);
}

/** All columns except the output. An output may be long. */
const shortColumns = [
  "id",
  "workspace_id",
  "agent_id",
  "session_id",
  "session_created",
  "version",
  "end_user_id",
  "trigger_type",
  "trigger_id",
  "traceparent",
  "status",
  "error_code",
  "error_message",
  "finish_reason",
  "output_expires_at",
  "expired",
  "steps",
  "input_tokens",
  "output_tokens",
  "cached_input_tokens",
  "reasoning_tokens",
  "active_ms",
  "last_event_id",
  "process_id",
  "attempts",
  "resumed",
  "resumes",
  "retry_at",
  "model_waits",
  "waits_turn",
  "created_at",
  "started_at",
  "finished_at",
] as const;

const views = (db: Db) =>
  db
    .selectFrom("agent_runs")
    .innerJoin("agents", "agents.id", "agent_runs.agent_id")
    .selectAll("agent_runs")
    .select("agents.name as agent");

export function findRun(db: Db, id: string, workspaceIds: readonly string[]): Promise<RunView | undefined> {
  return views(db)
    .select(
      sql<SignInLink[] | null>`(
        select json_agg(asked.data order by asked.seq) from (
          select distinct on (e.data ->> 'toolset_id') e.seq, e.data::jsonb || jsonb_build_object('at', e.at) as data
          from agent_events as e where e.run_id = agent_runs.id and e.type = 'connection.auth_required'
          order by e.data ->> 'toolset_id', e.seq desc) as asked)`.as("sign_ins"),
    )
    .where("agent_runs.id", "=", id)
    .where("agent_runs.workspace_id", "=", among(workspaceIds))
    .executeTakeFirst();
}

/**
 * Locks the run's row until the transaction ends, and returns the row. Without `workspaceIds`, the run may be in any
 * workspace.
 */
export function lockRun(
  tx: Db,
  id: string,
  workspaceIds?: readonly string[],
): Promise<Pick<RunRow, "id" | "status" | "retry_at" | "waits_turn" | "process_id"> | undefined> {
  let query = tx
    .selectFrom("agent_runs")
    .select(["id", "status", "retry_at", "waits_turn", "process_id"])
    .where("id", "=", id);
  if (workspaceIds) query = query.where("workspace_id", "=", among(workspaceIds));
  return query.forUpdate().executeTakeFirst();
}

/** Deletes the stored input of a run that waits for its turn. */
export async function deleteTurn(tx: Db, runId: string): Promise<void> {
  await tx.deleteFrom("agent_turns").where("run_id", "=", runId).execute();
}

/** Reads and locks a run's whole row until the transaction ends. */
export function lockWholeRun(tx: Db, id: string): Promise<RunRow | undefined> {
  return tx.selectFrom("agent_runs").selectAll().where("id", "=", id).forUpdate().executeTakeFirst();
}

export async function findNewestOfSession(db: Db, sessionId: string): Promise<string | undefined> {
  const row = await db
    .selectFrom("agent_runs")
    .select("id")
    .where("session_id", "=", sessionId)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(1)
    .executeTakeFirst();
  return row?.id;
}

export async function countInFlight(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("agent_runs")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("status", "in", ["queued", "running"])
    .where("waits_turn", "=", false)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Returns a run of any workspace. Returns undefined if the run has not ended. */
export function findEnded(db: Db, id: string): Promise<RunView | undefined> {
  return views(db)
    .where("agent_runs.id", "=", id)
    .where("agent_runs.finished_at", "is not", null)
    .executeTakeFirst();
}

/** Lists runs. Omits outputs larger than `outputMaxBytes`. */
export function listRuns(
  db: Db,
  workspaceIds: readonly string[],
  wanted: {
    agentId?: string | undefined;
    sessionId?: string | undefined;
    endUserId?: string | undefined;
    status?: RunStatus | undefined;
    trigger?: RunRow["trigger_type"] | undefined;
    createdAfter?: string | undefined;
    createdBefore?: string | undefined;
    before?: Position | undefined;
    limit: number;
    outputMaxBytes: number;
  },
): Promise<(RunView & { created_at_text: string })[]> {
  const { agentId, sessionId, endUserId, status, trigger, createdAfter, createdBefore, before } = wanted;
  let query = db
    .selectFrom("agent_runs")
    .innerJoin("agents", "agents.id", "agent_runs.agent_id")
    .select(shortColumns.map((name) => `agent_runs.${name}` as const))
    .select([
      "agents.name as agent",
      sql<string>`agent_runs.created_at::text`.as("created_at_text"),
      sql<string | null>`case when octet_length(agent_runs.output) <= ${wanted.outputMaxBytes}
        then agent_runs.output end`.as("output"),
    ])
    .where("agent_runs.workspace_id", "=", among(workspaceIds));
  if (agentId !== undefined) query = query.where("agent_runs.agent_id", "=", agentId);
  if (sessionId !== undefined) query = query.where("agent_runs.session_id", "=", sessionId);
  if (endUserId !== undefined) query = query.where("agent_runs.end_user_id", "=", endUserId);
  if (status !== undefined) query = query.where("agent_runs.status", "=", status);
  if (trigger !== undefined) query = query.where("agent_runs.trigger_type", "=", trigger);
  if (createdAfter !== undefined)
    query = query.where("agent_runs.created_at", ">=", sql<Date>`${createdAfter}::timestamptz`);
  if (createdBefore !== undefined)
    query = query.where("agent_runs.created_at", "<", sql<Date>`${createdBefore}::timestamptz`);
  if (before !== undefined)
    query = query.where(
      sql<boolean>`(agent_runs.created_at, agent_runs.id) < (${before.createdAt}::timestamptz, ${before.id})`,
    );
  return query
    .orderBy("agent_runs.created_at", "desc")
    .orderBy("agent_runs.id", "desc")
    .limit(wanted.limit)
    .execute();
}

/** Returns the newest run of each of these agents. */
export function lastRuns(
  db: Db,
  agentIds: readonly string[],
): Promise<Pick<RunRow, "id" | "agent_id" | "status" | "created_at" | "finished_at">[]> {
  return db
    .selectFrom("agent_runs")
    .distinctOn("agent_id")
    .select(["id", "agent_id", "status", "created_at", "finished_at"])
    .where("agent_id", "=", anyOf(agentIds))
    .orderBy("agent_id")
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

// ---- execution

/**
 * Lists runs that wait for a process or lost their process, the oldest of each workspace first. The number is limited
 * to the workspace's free slots in this process.
 */
export async function findOrphans(
  db: Db,
  who: {
    processId: string;
    hostId: string | null;
    executing: readonly string[];
    limit: number;
    maxPerWorkspace: number;
    /** Suspended workspaces, whose runs are omitted. */
    held: readonly string[];
  },
): Promise<string[]> {
  const executing = sql`${sql.val([...who.executing])}::text[]`;
  const { rows } = await sql<{ id: string }>`
    with held as (
      select workspace_id, count(*) as count from agent_runs
      where status in ('queued', 'running', 'pending_approval') and id = any(${executing})
      group by workspace_id
    ), waiting as (
      select id, workspace_id, created_at,
        row_number() over (partition by workspace_id order by created_at, id) as turn
      from agent_runs
      where status in ('queued', 'running') and not waits_turn and id <> all(${executing}) and ${isDue} and ${isFree(who)} and ${isOutside(who.held)}
    )
    select id from waiting left join held using (workspace_id)
    where turn + coalesce(held.count, 0) <= ${who.maxPerWorkspace}
    order by turn, created_at
    limit ${who.limit}`.execute(db);
  return rows.map(({ id }) => id);
}

/**
 * True for runs of no process, of this process, or of a dead process. A process is dead if it has no row or sent no
 * heartbeat for 6.5 s. An earlier process of this host is dead too, because a host has one server at a time.
 */
const isFree = ({ processId, hostId }: { processId: string; hostId: string | null }) =>
  sql<boolean>`(process_id is null or process_id = ${processId} or not exists (
    select from processes where processes.id = agent_runs.process_id
      and seen_at > now() - interval '6.5 seconds' and host_id is distinct from ${hostId}))`;

/** True if the run no longer waits for a model. */
const isDue = sql<boolean>`(retry_at is null or retry_at <= now())`;

const isOutside = (workspaceIds: readonly string[]) =>
  sql<boolean>`workspace_id <> all(${sql.val([...workspaceIds])}::uuid[])`;

/**
 * Lists runs with an open question whose process is dead: all such runs, or only the given run. `executing`: runs that
 * this process executes.
 */
export async function findLostQuestions(
  db: Db,
  who: { processId: string; hostId: string | null; executing: readonly string[] },
  id: string | null = null,
): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from agent_runs
    where id in (select run_id from agent_approvals where kind = 'elicitation' and status = 'pending')
      and (${id}::text is null or id = ${id}) and status = 'pending_approval'
      and id <> all(${sql.val([...who.executing])}::text[]) and ${isFree(who)}
    limit 100`.execute(db);
  return rows.map((row) => row.id);
}

/** True if the run belonged to this process, or if the run's workspace has a free slot in this process. */
const hasPlace = ({ processId, maxPerWorkspace }: { processId: string; maxPerWorkspace: number }) =>
  sql<boolean>`((status = 'running' and process_id = ${processId}) or ${maxPerWorkspace} > (
    select count(*) from agent_runs as other where other.workspace_id = agent_runs.workspace_id
      and other.status in ('running', 'pending_approval') and other.process_id = ${processId}))`;

/**
 * Acquires the run for this process. Returns undefined if another process has the run, no slot is free, or the run has
 * ended.
 */
export function acquireRun(
  db: Db,
  id: string,
  who: { processId: string; hostId: string | null; maxPerWorkspace: number; held: readonly string[] },
  now: Date,
): Promise<RunRow | undefined> {
  return db
    .updateTable("agent_runs")
    .set((eb) => ({
      process_id: who.processId,
      attempts: eb("attempts", "+", 1),
      status: "running" as const,
      retry_at: null,
      started_at: sql<Date>`coalesce(started_at, ${now})`,
    }))
    .where("id", "=", id)
    .where("status", "in", ["queued", "running"])
    .where("waits_turn", "=", false)
    .where(isDue)
    .where(isFree(who))
    .where(hasPlace(who))
    .where(isOutside(who.held))
    .returningAll()
    .executeTakeFirst();
}

/** Releases the run for other processes. The release does not count as a failed attempt. */
export async function releaseRun(db: Db, { id, attempt }: Claim, activeMs: number): Promise<void> {
  await db
    .updateTable("agent_runs")
    .set((eb) => ({
      process_id: null,
      resumed: eb("resumed", "+", 1),
      active_ms: eb("active_ms", "+", activeMs),
    }))
    .where("id", "=", id)
    .where("attempts", "=", attempt)
    .where("status", "=", "running")
    .execute();
}

/** Returns true if the last step has started and not ended. */
export async function hasOpenStep(db: Db, id: string): Promise<boolean> {
  const row = await db
    .selectFrom("agent_events")
    .select("type")
    .where("run_id", "=", id)
    .where("type", "in", ["step.started", "step.completed", "step.reset"])
    .orderBy("seq", "desc")
    .limit(1)
    .executeTakeFirst();
  return row?.type === "step.started";
}

// ---- streaming

/**
 * Returns the next events, limited to `rowsMax` and `bytesMax`, but at least one. `isAll`: there are no further events.
 * The compressed size is checked first, so that a page does not decompress far more than it returns.
 */
export async function eventsAfter(
  db: Db,
  id: string,
  seq: number,
  { rowsMax, bytesMax }: { rowsMax: number; bytesMax: number },
): Promise<{ rows: EventRow[]; isAll: boolean }> {
  const { rows } = await sql<EventRow & { found: number }>`
    select run_id, seq, type, at, data, found from (
      select *, sum(octet_length(data::text)) over (order by seq) as bytes from (
        select *, sum(pg_column_size(data)) over (order by seq) as stored_bytes,
          row_number() over (order by seq) as place, count(*) over () as found from (
          select run_id, seq, type, at, data from agent_events
          where run_id = ${id} and seq > ${seq} order by seq limit ${rowsMax}) as following) as sized
      where stored_bytes <= ${bytesMax} or place = 1) as measured
    where bytes <= ${bytesMax} or place = 1 order by seq`.execute(db);
  const found = rows[0]?.found ?? 0;
  return { rows, isAll: rows.length === found && found < rowsMax };
}

export function findState(db: Db, id: string): Promise<Pick<RunRow, "status" | "last_event_id"> | undefined> {
  return db
    .selectFrom("agent_runs")
    .select(["status", "last_event_id"])
    .where("id", "=", id)
    .executeTakeFirst();
}

/** Returns the progress of each run as a text that changes with the run. */
export async function statesOf(db: Db, ids: readonly string[]): Promise<[id: string, state: string][]> {
  const rows = await db
    .selectFrom("agent_runs")
    .select(["id", "status", "last_event_id"])
    .where("id", "=", anyOf(ids))
    .execute();
  return rows.map(({ id, status, last_event_id }) => [id, `${status} ${last_event_id}`]);
}

/** Returns the sources of a step's prompt. The tools are the last that were stored up to this step. */
export async function findStepPrompt(
  db: Db,
  runId: string,
  step: number,
): Promise<{ prompt: StepPrompt | null; model: string; tools: StepPrompt["tools"] | null } | undefined> {
  const { rows } = await sql<{ prompt: StepPrompt | null; model: string; tools: StepPrompt["tools"] | null }>`
    select prompt, model, (
      select earlier.prompt -> 'tools' from agent_steps as earlier
      where earlier.run_id = s.run_id and earlier.step <= s.step and earlier.prompt -> 'tools' is not null
      order by earlier.step desc limit 1) as tools
    from agent_steps as s where run_id = ${runId} and step = ${step}`.execute(db);
  return rows[0];
}

// ---- retention

/** Lists runs whose output has expired, the oldest first. */
export async function findExpiring(db: Db, now: Date, limit: number): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_runs")
    .select("id")
    .where("expired", "=", false)
    .where("output_expires_at", "<", now)
    .orderBy("output_expires_at")
    .limit(limit)
    .execute();
  return rows.map(({ id }) => id);
}

/**
 * Deletes the text of a run. Events and sequence numbers stay. With `isBroken`, the events lose all fields. Does
 * nothing if the run was resumed after it was found.
 */
export async function stripTexts(
  tx: Db,
  id: string,
  { now, isBroken = false }: { now: Date; isBroken?: boolean },
): Promise<void> {
  const expired = await tx
    .updateTable("agent_runs")
    .set({ expired: true, output: null })
    .where("id", "=", id)
    .where("output_expires_at", "<", now)
    .returning("id")
    .executeTakeFirst();
  if (!expired) return;
  await tx
    .updateTable("agent_events")
    .set({
      data: isBroken
        ? '{"expired": true}'
        : sql<string>`((data::jsonb - ${sql.val([...textFields])}::text[])
          || '{"expired": true}'::jsonb)::json`,
    })
    .where("run_id", "=", id)
    .where("type", "=", anyOf(textEvents))
    .execute();
  await tx
    .updateTable("agent_steps")
    .set({ prompt: null })
    .where("run_id", "=", id)
    .where("prompt", "is not", null)
    .execute();
  await eraseCallTexts(tx, [id]);
  await deleteApprovalTexts(tx, [id]);
}

// ---- erasure

/** Locks the active runs of these sessions until the transaction ends, and returns their ids. */
export async function lockActive(tx: Db, agentId: string, sessionIds: readonly string[]): Promise<string[]> {
  const rows = await tx
    .selectFrom("agent_runs")
    .select("id")
    .where("agent_id", "=", agentId)
    .where("session_id", "=", anyOf(sessionIds))
    .where("status", "in", ["queued", "running", "pending_approval"])
    .orderBy("id")
    .forUpdate()
    .execute();
  return rows.map(({ id }) => id);
}

export async function findOfSessions(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  const rows = await db
    .selectFrom("agent_runs")
    .select("id")
    .where("session_id", "=", anyOf(sessionIds))
    .execute();
  return rows.map(({ id }) => id);
}

/** Locks the existing runs among these against deletion until the transaction ends, and returns their ids. */
export async function lockExisting(tx: Db, runIds: readonly string[]): Promise<string[]> {
  const rows = await tx
    .selectFrom("agent_runs")
    .select("id")
    .where("id", "=", anyOf(runIds))
    .orderBy("id")
    .forKeyShare()
    .execute();
  return rows.map(({ id }) => id);
}
