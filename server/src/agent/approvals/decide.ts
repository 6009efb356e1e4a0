/**
 * A person's decision on one call. The decision and the run's next state are one transaction. The last decision of a
 * run queues it: this process executes it at once, and if it dies, another one does.
 */
import { isDeepStrictEqual } from "node:util";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { reached } from "#lib/kill-points.ts";
import { invalidField } from "../errors.ts";
import { faultsOf } from "../json-schema.ts";
import { runNotFound } from "../runs/errors.ts";
import { get, getRun } from "../runs/read.ts";
import type { AgentRuns } from "../runs/runs.ts";
import type { Run } from "../runs/schema.ts";
import { goOn, lockRun } from "../runs/wait.ts";
import { storableJson } from "../storable.ts";
import { type ApprovalRecord, close } from "./approvals.ts";
import { approvalDecided, approvalExpired, approvalNotFound, approvalEdited } from "./errors.ts";
import { expireLate } from "./expire.ts";
import type { Decide } from "./schema.ts";
import { decisions } from "./states.ts";
import { agentOf, findApproval } from "./store.ts";

type Arguments = Record<string, unknown>;

/** Returns the run after the decision, or at its next stop within `wait_s`. A repeated decision returns the same. */
export async function decide(
  app: Pick<App, "db" | "clock" | "config">,
  runs: AgentRuns,
  actor: Actor,
  { run_id: runId, request_id: id }: { run_id: string; request_id: string },
  { decision, reason, arguments: given, wait_s: waitSeconds }: Decide,
): Promise<Run> {
  const status = decisions[decision];
  const changed = given && (JSON.parse(storableJson(given)) as Arguments);
  if (changed) await requireFit(app.db, actor, { runId, id }, changed);
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
    await settle(tx, actor, found, { status, at: now, reason, approvedArguments });
    return { ...found, status, approved_arguments: approvedArguments ?? null };
  });
  await reached("agent.approval.decided");
  // Needed for a repeated decision too: the process that stored it may have died before it queued the run.
  if (isLate) await runs.lapsed(runId);
  else {
    runs.begin(runId);
    runs.changed(runId);
  }
  requireSame(approval, status, changed);
  await runs.settled(runId, waitSeconds * 1000);
  return get(app, runs, actor, runId);
}

type Outcome = Pick<ApprovalRecord, "status" | "arguments" | "approved_arguments">;

/** Checks the arguments of a pending approval against the tool's schema, before any lock is held. */
async function requireFit(
  db: Db,
  actor: Actor,
  { runId, id }: { runId: string; id: string },
  changed: Arguments,
): Promise<void> {
  const { workspace_id: owner } = await getRun({ db }, actor, runId);
  const approval = await findApproval(db, runId, id);
  if (approval?.status !== "pending" || !approval.parameters) return;
  const faults = await faultsOf(owner, approval.parameters, changed);
  if (faults.length > 0)
    throw invalidField(
      ["arguments"],
      `do not fit the schema of ${approval.tool}: ${faults.join("; ")}. Correct them, or leave \`arguments\` out to approve the call as it is`,
    );
}

/** Throws unless the stored outcome is the requested one. */
function requireSame(stored: Outcome, wanted: "approved" | "denied", changed: Arguments | undefined): void {
  const { status } = stored;
  if (status === "expired") throw approvalExpired();
  if (status === "pending" || status !== wanted) throw approvalDecided(status);
  // The arguments are deleted with the run's text. Without them, any arguments count as a repetition.
  if (stored.arguments === null) return;
  const approved = stored.approved_arguments ?? stored.arguments;
  if (status === "approved" && !isDeepStrictEqual(changed ?? stored.arguments, approved))
    throw approvalEdited();
}

async function settle(
  tx: Db,
  actor: Actor,
  approval: ApprovalRecord,
  change: {
    status: "approved" | "denied";
    at: Date;
    reason: string | undefined;
    approvedArguments: Arguments | undefined;
  },
): Promise<void> {
  const by = { kind: actor.kind, id: actor.id, label: actor.label };
  await goOn(tx, approval.run_id, await close(tx, [approval.id], { ...change, by }));
  const target = { kind: "agent_run", id: approval.run_id, label: await agentOf(tx, approval.run_id) };
  await recordActivity(tx, actor, `agent_approval.${change.status}`, target, approval.workspace_id, {
    request_id: approval.id,
    tool: approval.tool,
    ...(change.approvedArguments ? { arguments_changed: true } : {}),
  });
}
