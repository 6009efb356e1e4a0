/**
 * Somebody decides, once and for good. The decision and the run's going on are one commit, so that whoever is answered
 * may rely on it: this process takes the run up at once, and where it dies, another does.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { reached } from "#lib/kill-points.ts";
import { runNotFound } from "../runs/errors.ts";
import { get } from "../runs/read.ts";
import type { AgentRuns } from "../runs/runs.ts";
import type { Run } from "../runs/schema.ts";
import { goOn, lockRun } from "../runs/wait.ts";
import { type ApprovalRecord, close } from "./approvals.ts";
import { approvalDecided, approvalExpired, approvalNotFound } from "./errors.ts";
import { expire, isLate } from "./expire.ts";
import { type ApprovalStatus, type Decision, decisions } from "./states.ts";
import { agentOf, findApproval } from "./store.ts";

/** The run, as it is after the decision. The same decision again is answered alike. */
export async function decide(
  app: Pick<App, "db" | "clock">,
  runs: AgentRuns,
  actor: Actor,
  { run_id: runId, request_id: id }: { run_id: string; request_id: string },
  { decision, reason }: { decision: Decision; reason?: string | undefined },
): Promise<Run> {
  const wanted = decisions[decision];
  const now = app.clock.now();
  let lapsesNow = false;
  const outcome = await app.db.transaction().execute(async (tx): Promise<ApprovalStatus> => {
    const run = await lockRun(tx, runId, workspaceIds(actor));
    if (!run) throw runNotFound();
    const approval = await findApproval(tx, runId, id);
    if (!approval) throw approvalNotFound();
    if (approval.status !== "pending") return approval.status;
    if (await isLate(tx, approval, now)) {
      await expire(tx, approval, now);
      lapsesNow = true;
      return "expired";
    }
    await settle(tx, actor, approval, { status: wanted, at: now, reason });
    return wanted;
  });
  await reached("agent.approval.decided");
  // Also where it was too late, or decided before by a process that is gone: the run may go on.
  if (lapsesNow) await runs.lapsed(runId);
  else {
    runs.begin(runId);
    runs.changed(runId);
  }
  if (outcome === "expired") throw approvalExpired();
  if (outcome !== wanted) throw approvalDecided(outcome);
  return get(app, runs, actor, runId);
}

async function settle(
  tx: Db,
  actor: Actor,
  approval: ApprovalRecord,
  { reason, ...change }: { status: "approved" | "denied"; at: Date; reason: string | undefined },
): Promise<void> {
  const by = { kind: actor.kind, id: actor.id, label: actor.label };
  await goOn(tx, approval.run_id, [await close(tx, approval.id, { ...change, by, reason })]);
  const target = { kind: "agent_run", id: approval.run_id, label: await agentOf(tx, approval.run_id) };
  await recordActivity(tx, actor, `agent_approval.${change.status}`, target, approval.workspace_id, {
    request_id: approval.id,
    tool: approval.tool,
  });
}
