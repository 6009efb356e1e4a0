/**
 * A person's decision on one call, or response to a question. The decision and the run's next state are one
 * transaction. The last decision of a run queues the run. This process executes the run at once; after a crash, another
 * process does.
 */
import { isDeepStrictEqual } from "node:util";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { invalidField } from "../errors.ts";
import { findFaults } from "../json-schema.ts";
import { runNotFound } from "../runs/api/run-errors.ts";
import { get, getRun } from "../runs/api/read.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import type { Run } from "../runs/schema.ts";
import { continueRun } from "../runs/engine/waiting-run.ts";
import { lockRun } from "../runs/store.ts";
import { storableJson } from "../storable.ts";
import { type ApprovalRecord, closePending } from "./approvals.ts";
import { validateContent, type Content, hashOfAnswer, withDefaults } from "./answer.ts";
import { approvalDecided, approvalExpired, approvalNotFound, approvalEdited, answerGiven } from "./errors.ts";
import { expireLate } from "./expire.ts";
import type { Decide } from "./schema.ts";
import { decisions } from "./states.ts";
import { agentOf, findApproval } from "./store.ts";

type Arguments = Record<string, unknown>;
type DecidedStatus = (typeof decisions)[keyof typeof decisions];

/**
 * Returns the run after the decision, or at its next stop within `wait_s` seconds. A repeated decision returns the same
 * run.
 */
export async function decide(
  app: Pick<App, "db" | "clock" | "config" | "secrets">,
  runs: RunExecutor,
  actor: Actor,
  { run_id: runId, request_id: id }: { run_id: string; request_id: string },
  decided: Decide,
): Promise<Run> {
  const { decision, reason, arguments: given, wait_s: waitSeconds } = decided;
  const status = decisions[decision];
  const changed = given && (JSON.parse(storableJson(given)) as Arguments);
  const content = await requireValidDecision(
    app.db,
    actor,
    { runId, id },
    { ...decided, arguments: changed },
  );
  const answer = content && hashOfAnswer(app, id, content);
  const now = app.clock.now();
  let isLate = false;
  const approval = await app.db.transaction().execute(async (tx): Promise<Outcome> => {
    const run = await lockRun(tx, runId, workspaceIds(actor));
    if (!run) throw runNotFound();
    const found = await findApproval(tx, runId, id);
    if (!found) throw approvalNotFound();
    if (found.status !== "pending") return found;
    if (found.expires_at <= now && (await expireLate(tx, runId, now))) {
      isLate = true;
      return { ...found, status: "expired" };
    }
    const approvedArguments = isDeepStrictEqual(changed, found.arguments) ? undefined : changed;
    await commitDecision(tx, actor, found, { status, at: now, reason, approvedArguments, content, answer });
    return { ...found, status, approved_arguments: approvedArguments ?? null };
  });
  await passKillPoint("agent.approval.decided");
  // A repeated decision needs this too: the process that stored the decision may have died before it queued the run.
  if (isLate) await runs.onWaitExpired(runId);
  else {
    // The run of a question keeps its process and continues there without being queued.
    if (approval.kind === "call") runs.submit(runId);
    runs.notifyChanged(runId);
  }
  requireSame(approval, status, { changed, answer: decided.content && answer });
  await runs.waitForOutcome(runId, waitSeconds * 1000);
  return get(app, runs, actor, runId);
}

type Outcome = Pick<ApprovalRecord, "kind" | "status" | "arguments" | "approved_arguments" | "decided_by">;

/**
 * Checks a decision on a pending approval before any lock is held. Validates the decision's fields against the kind,
 * changed arguments against the tool's schema, and content against the question's schema. Returns the content.
 */
async function requireValidDecision(
  db: Db,
  actor: Actor,
  { runId, id }: { runId: string; id: string },
  decided: Pick<Decide, "decision" | "reason" | "arguments" | "content">,
): Promise<Content | undefined> {
  const isPlain =
    decided.decision !== "cancel" && (decided.arguments ?? decided.content ?? decided.reason) === undefined;
  if (isPlain && decided.decision === "deny") return undefined;
  const { workspace_id: owner } = await getRun({ db }, actor, runId);
  const approval = await findApproval(db, runId, id);
  if (!approval) return undefined;
  requireFieldsOf(approval.kind, decided);
  const { question, status } = approval;
  if (question && decided.decision === "approve")
    return status === "pending"
      ? validateContent(owner, question, decided.content)
      : withDefaults(question, decided.content);
  if (question || status !== "pending") return undefined;
  if (!decided.arguments || !approval.parameters) return undefined;
  const faults = await findFaults(owner, approval.parameters, decided.arguments);
  if (faults.length > 0)
    throw invalidField(
      ["arguments"],
      `do not fit the schema of ${approval.tool}: ${faults.join("; ")}. Correct them, or leave \`arguments\` out to approve the call as it is`,
    );
  return undefined;
}

function requireFieldsOf(
  kind: ApprovalRecord["kind"],
  {
    decision,
    reason,
    arguments: changed,
    content,
  }: Pick<Decide, "decision" | "reason" | "arguments" | "content">,
): void {
  if (kind === "call") {
    if (decision === "cancel")
      throw invalidField(
        ["decision"],
        "must be `approve` or `deny` for a call; only questions can be dismissed",
      );
    if (content !== undefined)
      throw invalidField(["content"], "is for a question, and this request is a call; remove content");
    return;
  }
  if (changed !== undefined)
    throw invalidField(
      ["arguments"],
      "are for a call, and this request is a question; send the response as `content`",
    );
  if (reason !== undefined)
    throw invalidField(["reason"], "is not sent to the server of a question; remove reason");
}

/** Throws unless the stored decision equals the requested decision. */
function requireSame(
  stored: Outcome,
  wanted: DecidedStatus,
  { changed, answer }: { changed: Arguments | undefined; answer: string | undefined },
): void {
  const { status } = stored;
  if (status === "expired") throw approvalExpired();
  if (status === "pending" || status !== wanted) throw approvalDecided(status);
  if (stored.kind === "elicitation") {
    const kept = stored.decided_by?.answer;
    // The hash is deleted with the run's text. Without the hash, any content counts as a repetition.
    if (answer !== undefined && kept !== undefined && answer !== kept) throw answerGiven();
    return;
  }
  // The arguments are deleted with the run's text. Without stored arguments, any arguments count as a repetition.
  if (stored.arguments === null) return;
  const approved = stored.approved_arguments ?? stored.arguments;
  if (status === "approved" && !isDeepStrictEqual(changed ?? stored.arguments, approved))
    throw approvalEdited();
}

async function commitDecision(
  tx: Db,
  actor: Actor,
  approval: ApprovalRecord,
  change: {
    status: DecidedStatus;
    at: Date;
    reason: string | undefined;
    approvedArguments: Arguments | undefined;
    content: Content | undefined;
    answer: string | undefined;
  },
): Promise<void> {
  const by = { kind: actor.kind, id: actor.id, label: actor.label };
  await continueRun(tx, approval.run_id, await closePending(tx, [approval.id], { ...change, by }));
  const target = { kind: "agent_run", id: approval.run_id, label: await agentOf(tx, approval.run_id) };
  await recordActivity(tx, actor, `agent_approval.${change.status}`, target, approval.workspace_id, {
    request_id: approval.id,
    tool: approval.tool,
    ...(change.approvedArguments ? { arguments_changed: true } : {}),
  });
}
