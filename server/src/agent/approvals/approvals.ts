/**
 * Approvals: a person decides on one call of a tool. This folder stores the request, its call and its outcome. The
 * folder promises:
 * - An approval is decided once.
 * - The approved arguments are the arguments that the person saw, or those that the person sent instead.
 * - A waiting run uses no memory, no process and none of its time limit.
 *
 * All calls of a step that need approval are requested together. Such a run consists of rows until the last approval
 * is decided or expires, or until the run ends. A question of a tool's server during a call is an approval of kind
 * `elicitation`. The run of such a question keeps its process, which keeps the call open (`runs/engine/questions.ts`).
 */
import { notify } from "#accounts/notifications/notifications.ts";
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { storableJson } from "../storable.ts";
import { toWaiting, type WaitingApproval } from "./schema.ts";
import type { ApprovalStatus } from "./states.ts";
import {
  agentOf,
  type ApprovalRow,
  approvalsOfRun,
  closeApprovals,
  countWaiting,
  insertApprovals,
  isPending,
  listWaiting,
  pendingIds,
  pendingOfRuns,
  type PendingRow,
} from "./store.ts";
import type { Decider, ElicitationQuestion } from "./tables.ts";

export { approvalExists, deleteContents, takeAnswer } from "./store.ts";

export type ApprovalRecord = ApprovalRow;
export type PendingApproval = PendingRow;

const listedMax = 100;
const listedArgumentsMaxBytes = 16 * 1024;

/** Lists pending approvals of all workspaces that the actor reaches, newest first. */
export async function list(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
): Promise<{ items: WaitingApproval[]; total: number }> {
  const { rows, total } = await waiting(app.db, workspaceIds(actor), listedMax, app.clock.now());
  return { items: rows.map(toWaiting), total };
}

/** Returns the pending approvals as a section of the workspace's snapshot. */
export async function pendingApprovals(db: Db, workspaceId: string, limit: number) {
  const { rows, total } = await waiting(db, [workspaceId], limit, new Date());
  const items = rows.map(({ id, run_id, agent, tool, created_at, expires_at }) => ({
    request_id: id,
    run_id,
    agent,
    tool,
    created_at,
    expires_at,
  }));
  return { items, total };
}

async function waiting(db: Db, workspaces: readonly string[], limit: number, now: Date) {
  const [rows, total] = await Promise.all([
    listWaiting(db, workspaces, { now, limit, argumentsMaxBytes: listedArgumentsMaxBytes }),
    countWaiting(db, workspaces, now),
  ]);
  return { rows, total };
}

// ---- waits of runs

export interface Question {
  id: string;
  workspaceId: string;
  runId: string;
  call: { id: string; tool: string; arguments: Record<string, unknown> };
  /** JSON Schema of the arguments. */
  parameters: Record<string, unknown>;
  onExpire: ApprovalRow["on_expire"];
  at: Date;
  expiresAt: Date;
  /** Question of the tool's server. Undefined for the approval of a call. */
  elicitation?: ElicitationQuestion | undefined;
}

export function question(of: Omit<Question, "id">): Question {
  return { id: newId("apr_"), ...of };
}

/**
 * Inserts the approvals of one run, in the transaction in which the run begins to wait. Sends one notification unless
 * `isQuiet`.
 */
export async function requestApprovals(
  tx: Db,
  questions: readonly Question[],
  { isQuiet = false } = {},
): Promise<void> {
  const [first] = questions;
  if (!first) return;
  const { workspaceId, runId, expiresAt } = first;
  const rows = questions.map(({ id, call, parameters, onExpire, at, elicitation }) => ({
    id,
    kind: elicitation ? ("elicitation" as const) : ("call" as const),
    question: elicitation ? storableJson(elicitation) : null,
    workspace_id: workspaceId,
    run_id: runId,
    call_id: call.id,
    tool: call.tool,
    arguments: storableJson(call.arguments),
    parameters: elicitation ? null : storableJson(parameters),
    approved_arguments: null,
    status: "pending" as const,
    on_expire: onExpire,
    created_at: at,
    expires_at: expiresAt,
    decided_at: null,
    decided_by: null,
  }));
  await insertApprovals(tx, rows);
  if (isQuiet) return;
  const agent = await agentOf(tx, runId);
  const tools = [...new Set(questions.map(({ call }) => call.tool))].join(", ");
  const until = expiresAt.toISOString();
  const title =
    questions.length === 1
      ? `${agent} requests approval to call ${tools}`
      : `${agent} requests approval for ${questions.length} calls`;
  await notify(tx, {
    workspaceId,
    kind: "approval_pending",
    // The question's text comes from the server of a tool, so only the run shows it, not the notification.
    title: first.elicitation ? `${agent} forwards a question of ${tools}` : title,
    body: first.elicitation
      ? `Answer or decline the question until ${until}; the run waits.`
      : `Approve or deny ${tools} until ${until}; the run waits.`,
    target: { kind: "agent_run", id: runId, label: agent },
  });
}

interface Closing {
  status: Exclude<ApprovalStatus, "pending">;
  at: Date;
  by: Decider | null;
  reason?: string | undefined;
  /** Arguments that the person sent in place of the requested arguments. */
  approvedArguments?: Record<string, unknown> | undefined;
  /** Response to a question. The response is sent to the tool's server, and no event shows it. */
  content?: Record<string, unknown> | undefined;
  /** Keyed hash of the response's content. */
  answer?: string | undefined;
}

/** Closes pending approvals and returns their events. The caller holds the lock on the run's row. */
export async function closePending(tx: Db, ids: readonly string[], change: Closing) {
  const { status: outcome, at, by, reason, approvedArguments, content, answer } = change;
  const why = reason === undefined ? {} : { reason };
  const changed = approvedArguments === undefined ? {} : { arguments: approvedArguments };
  await closeApprovals(tx, ids, {
    status: outcome,
    at,
    by: by && { ...by, ...why, ...(answer === undefined ? {} : { answer }) },
    approvedArguments,
    content,
  });
  return ids.map((id) => ({
    type: "approval.resolved",
    at,
    data: { request_id: id, outcome, by, ...why, ...changed },
  }));
}

/**
 * Cancels the pending approvals of a run that ends, and returns their events. The caller holds the lock on the run's
 * row.
 */
export async function cancelPending(tx: Db, runId: string, at: Date) {
  return closePending(tx, await pendingIds(tx, runId), { status: "cancelled", at, by: null });
}

/** Cancels a server's question if it is pending. The caller holds the lock on the run's row. */
export async function cancelQuestion(tx: Db, id: string, at: Date) {
  return (await isPending(tx, id)) ? closePending(tx, [id], { status: "cancelled", at, by: null }) : [];
}

export async function hasPending(tx: Db, runId: string): Promise<boolean> {
  return (await pendingIds(tx, runId)).length > 0;
}

/** Returns the approvals of a run by the id of their call. */
export async function approvalsByCall(db: Db, runId: string): Promise<Map<string, ApprovalRow>> {
  return new Map((await approvalsOfRun(db, runId)).map((row) => [row.call_id, row]));
}

/**
 * Returns the pending approvals of each run, in the order of the calls. Omits further arguments and questions after a
 * run's arguments and questions exceed `argumentsMaxBytes` together.
 */
export async function pendingByRun(
  db: Db,
  runIds: readonly string[],
  argumentsMaxBytes: number | null = null,
): Promise<Map<string, PendingApproval[]>> {
  if (runIds.length === 0) return new Map();
  return Map.groupBy(await pendingOfRuns(db, runIds, argumentsMaxBytes), ({ run_id }) => run_id);
}
