/** Runs as their owners see them. */
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { getAgent } from "../agents/agents.ts";
import { type PendingApproval, pendingByRun } from "../approvals/approvals.ts";
import { expireIfDue } from "../approvals/expire.ts";
import { called } from "../calls/calls.ts";
import { pageOf, positionOf } from "../cursor.ts";
import { runNotFound } from "./errors.ts";
import type { AgentRuns } from "./runs.ts";
import { type Run, type RunList, type RunQuery, toRun } from "./schema.ts";
import { findRun, listRuns, type RunView } from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

/** A hundred runs are some megabytes, whatever they said. */
const listedOutputMaxBytes = 64 * 1024;
const listedArgumentsMaxBytes = 16 * 1024;

export async function get(app: Needs, runs: AgentRuns, actor: Actor, id: string): Promise<Run> {
  const [{ row, approval }, calls] = await Promise.all([
    getOutcome(app, runs, actor, id),
    called(app.db, [id]),
  ]);
  return toRun(row, { calls: calls.get(id) ?? [], approval, now: app.clock.now() });
}

/** The run and what it waits for; where the time for that is up, the run after that. */
export async function getOutcome(
  app: Needs,
  runs: AgentRuns,
  actor: Actor,
  id: string,
): Promise<{ row: RunView; approval: PendingApproval | undefined }> {
  const row = await getRun(app, actor, id);
  if (row.status !== "pending_approval") return { row, approval: undefined };
  const approval = (await pendingByRun(app.db, [id])).get(id);
  const now = app.clock.now();
  if (approval && approval.expires_at > now) return { row, approval };
  // Decided on meanwhile, or late: by now somebody else may have found that as well.
  if (approval && (await expireIfDue(app.db, id, approval.id, now))) await runs.lapsed(id);
  const after = await getRun(app, actor, id);
  const isWaiting = after.status === "pending_approval";
  return { row: after, approval: isWaiting ? (await pendingByRun(app.db, [id])).get(id) : undefined };
}

export async function list(
  app: Needs & Pick<App, "secrets">,
  actor: Actor,
  query: RunQuery,
): Promise<RunList> {
  const { limit, cursor, ...filters } = query;
  const name = `runs:${JSON.stringify(filters)}`;
  const agentId = query.agent === undefined ? undefined : (await getAgent(app.db, actor, query.agent)).id;
  const found = await listRuns(app.db, workspaceIds(actor), {
    agentId,
    sessionId: query.session_id,
    endUserId: query.end_user_id,
    status: query.status,
    trigger: query.trigger,
    createdAfter: query.created_after,
    createdBefore: query.created_before,
    before: positionOf(app, actor, name, cursor),
    limit: limit + 1,
    outputMaxBytes: listedOutputMaxBytes,
  });
  const { page: rows, next_cursor } = pageOf(app, actor, name, found, limit);
  const now = app.clock.now();
  const ids = rows.map(({ id }) => id);
  const waiting = rows.filter(({ status }) => status === "pending_approval").map(({ id }) => id);
  const [calls, approvals] = await Promise.all([
    called(app.db, ids),
    pendingByRun(app.db, waiting, listedArgumentsMaxBytes),
  ]);
  const items = rows.map((row) =>
    toRun(row, { calls: calls.get(row.id) ?? [], approval: approvals.get(row.id), now }),
  );
  return { items, next_cursor };
}

export async function getRun(app: Pick<App, "db">, actor: Actor, id: string): Promise<RunView> {
  const row = await findRun(app.db, id, workspaceIds(actor));
  if (!row) throw runNotFound();
  return row;
}
