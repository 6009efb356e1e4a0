/** Reads runs for their owners. */
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { getAgent } from "#agent/agents/agents.ts";
import { pendingByRun } from "#agent/approvals/approvals.ts";
import { expireIfDue } from "#agent/approvals/expire.ts";
import { listStartedCalls } from "#agent/calls/calls.ts";
import { renewLinks } from "#agent/oauth/waits/renew.ts";
import { resolveWaitsOf } from "#agent/oauth/waits/resolve.ts";
import { openWaits } from "#agent/oauth/waits/waits.ts";
import { pageOf, positionOf } from "#agent/cursor.ts";
import { runNotFound } from "./run-errors.ts";
import type { RunExecutor } from "../engine/run-executor.ts";
import { type Run, type RunList, type RunQuery, toRun, type Waiting } from "../schema.ts";
import { findRun, listRuns, type RunView } from "../store.ts";

type Needs = Pick<App, "db" | "clock" | "config">;

/**
 * Maximum size of an output in a list. With this limit and the next, a page of a hundred runs stays at a few megabytes.
 */
const listedOutputMaxBytes = 64 * 1024;
const listedArgumentsMaxBytes = 16 * 1024;

export async function get(app: Needs, runs: RunExecutor, actor: Actor, id: string): Promise<Run> {
  const [{ row, waiting }, calls] = await Promise.all([
    getOutcome(app, runs, actor, id),
    listStartedCalls(app.db, [id]),
  ]);
  return toRun(row, { calls: calls.get(id) ?? [], waiting, now: app.clock.now() });
}

/**
 * Returns the run with its open approvals and sign-ins. Resolves approvals and sign-ins first whose deadlines have
 * passed.
 */
export async function getOutcome(
  app: Needs,
  runs: RunExecutor,
  actor: Actor,
  id: string,
): Promise<{ row: RunView; waiting: Waiting }> {
  const row = await getRun(app, actor, id);
  if (row.status !== "pending_approval") return { row, waiting: noWaits };
  const waiting = await waitingOf(app, id);
  const { approvals, signIns } = waiting;
  const now = app.clock.now();
  const isLate = approvals.some(({ expires_at }) => expires_at <= now);
  const isExpired = isLate && (await expireIfDue(app.db, id, now));
  const isResolved = signIns.length > 0 && (await resolveWaitsOf(app.db, id, now));
  if (isExpired || isResolved) await runs.onWaitExpired(id);
  else if (signIns.length > 0) await renewLinks(app, id, signIns, row.sign_ins ?? []);
  else if (approvals.length > 0 && !isLate) return { row, waiting };
  // The row is read again, because this request or another process may have changed it.
  const after = await getRun(app, actor, id);
  return { row: after, waiting: after.status === "pending_approval" ? await waitingOf(app, id) : noWaits };
}

const noWaits: Waiting = { approvals: [], signIns: [] };

async function waitingOf({ db }: Pick<App, "db">, id: string): Promise<Waiting> {
  const [approvals, signIns] = await Promise.all([pendingByRun(db, [id]), openWaits(db, [id])]);
  return { approvals: approvals.get(id) ?? [], signIns: signIns.get(id) ?? [] };
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
  const [calls, approvals, signIns] = await Promise.all([
    listStartedCalls(app.db, ids),
    pendingByRun(app.db, waiting, listedArgumentsMaxBytes),
    openWaits(app.db, waiting),
  ]);
  const items = rows.map((row) =>
    toRun(row, {
      calls: calls.get(row.id) ?? [],
      waiting: { approvals: approvals.get(row.id) ?? [], signIns: signIns.get(row.id) ?? [] },
      now,
    }),
  );
  return { items, next_cursor };
}

export async function getRun(app: Pick<App, "db">, actor: Actor, id: string): Promise<RunView> {
  const row = await findRun(app.db, id, workspaceIds(actor));
  if (!row) throw runNotFound();
  return row;
}
