/**
 * Approvals: a person decides on one call of a tool. This folder owns what was asked, of which call, and what came of
 * it. It promises that a question has one answer, for good; that what is approved is what was shown, argument by
 * argument; and that a run which waits takes no memory, no process and none of its own time: it is two rows, until
 * somebody decides, the time is up, or the run is ended.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import { storableJson } from "../storable.ts";
import { toWaiting, type WaitingApproval } from "./schema.ts";
import type { ApprovalStatus } from "./states.ts";
import {
  agentOf,
  type ApprovalRow,
  approvalsOfRun,
  closeApproval,
  deleteCancelled,
  countWaiting,
  forgetArguments,
  insertApproval,
  listWaiting,
  pendingOfRuns,
  type PendingRow,
} from "./store.ts";
import type { Decider } from "./tables.ts";

export type ApprovalRecord = ApprovalRow;
export type PendingApproval = PendingRow;

const listedMax = 100;
const listedArgumentsMaxBytes = 16 * 1024;

/** Newest first, of all workspaces the actor reaches. */
export async function list(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
): Promise<{ items: WaitingApproval[]; total: number }> {
  const { rows, total } = await waiting(app.db, workspaceIds(actor), listedMax, app.clock.now());
  return { items: rows.map(toWaiting), total };
}

/** What a workspace's snapshot shows of this. */
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

// ---- what runs are made to wait and to end by

export interface Question {
  id: string;
  workspaceId: string;
  runId: string;
  call: { id: string; tool: string; arguments: Record<string, unknown> };
  onExpire: ApprovalRow["on_expire"];
  at: Date;
  expiresAt: Date;
}

export function question(of: Omit<Question, "id">): Question {
  return { id: newId("apr_"), ...of };
}

/** In the transaction in which the run begins to wait. */
export async function raise(
  tx: Db,
  { id, workspaceId, runId, call, onExpire, at, expiresAt }: Question,
): Promise<void> {
  await insertApproval(tx, {
    id,
    workspace_id: workspaceId,
    run_id: runId,
    call_id: call.id,
    tool: call.tool,
    arguments: storableJson(call.arguments),
    status: "pending",
    on_expire: onExpire,
    created_at: at,
    expires_at: expiresAt,
    decided_at: null,
    decided_by: null,
  });
  const agent = await agentOf(tx, runId);
  await notify(tx, {
    workspaceId,
    kind: "approval_pending",
    title: `${agent} asks whether it may call ${call.tool}`,
    body: `Approve or deny it until ${expiresAt.toISOString()}; the run waits.`,
    target: { kind: "agent_run", id: runId, label: agent },
  });
}

/** Closed for good, and the event that says so. Of an approval that is pending, with its run's row locked. */
export async function close(
  tx: Db,
  id: string,
  change: {
    status: Exclude<ApprovalStatus, "pending">;
    at: Date;
    by: Decider | null;
    reason?: string | undefined;
  },
) {
  const { status: outcome, at, by, reason } = change;
  const told = reason === undefined ? {} : { reason };
  await closeApproval(tx, id, { status: outcome, at, by: by && { ...by, ...told } });
  return { type: "approval.resolved", at, data: { request_id: id, outcome, by, ...told } };
}

/** Of a run that is ended: nobody has to decide any more. Its row is locked. */
export async function cancelPending(tx: Db, runId: string, at: Date) {
  const pending = await pendingOfRuns(tx, [runId]);
  return Promise.all(pending.map(({ id }) => close(tx, id, { status: "cancelled", at, by: null })));
}

/** Deletes a run's undecided approvals. The resumed run requests them again. */
export function forgetCancelled(tx: Db, runId: string): Promise<void> {
  return deleteCancelled(tx, runId);
}

/** By the call that was asked for. */
export async function approvalsByCall(db: Db, runId: string): Promise<Map<string, ApprovalRow>> {
  return new Map((await approvalsOfRun(db, runId)).map((row) => [row.call_id, row]));
}

/** What each of these runs waits for, by the run. Arguments beyond `argumentsMaxBytes` are left out. */
export async function pendingByRun(
  db: Db,
  runIds: readonly string[],
  argumentsMaxBytes: number | null = null,
): Promise<Map<string, PendingApproval>> {
  if (runIds.length === 0) return new Map();
  const rows = await pendingOfRuns(db, runIds, argumentsMaxBytes);
  return new Map(rows.map((row) => [row.run_id, row]));
}

/** What calls said goes with what their runs said. */
export function forgetApprovals(tx: Db, runIds: readonly string[]): Promise<void> {
  return forgetArguments(tx, runIds);
}
