/**
 * Resumes a failed run from its last complete step, as the same run. A single statement queues the run again, and the first
 * process that polls executes it. The journal stays, so a finished call does not run again. An interrupted call runs
 * again only if its tool is repeatable.
 */
import type { Actor } from "#accounts/actor.ts";
import { planLimits } from "#accounts/plans.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { workspaceOf } from "#agent/agents/agents.ts";
import { resolveAgent } from "#agent/agents/versions/resolve-agent.ts";
import { deleteCancelledApprovals } from "#agent/approvals/store.ts";
import { deleteCancelledWaits } from "#agent/oauth/waits/store.ts";
import { uncountFailure } from "#agent/schedules/failures.ts";
import { awaitsAnswer, lockForInvoke } from "#agent/sessions/sessions.ts";
import { lockCounts } from "#agent/sessions/store.ts";
import { requireNotParking } from "#agent/vm/view.ts";
import { agentArchived, agentPaused, runNotFound, runNotResumable, tooManyRuns } from "./run-errors.ts";
import { transactionWithRetry } from "../journal/transaction-with-retry.ts";
import { reopen } from "../journal/journal.ts";
import { get, getRun } from "./read.ts";
import type { RunExecutor } from "../engine/run-executor.ts";
import type { Run } from "../schema.ts";
import { isOver, type RunErrorCode } from "../states.ts";
import { countInFlight, findNewestOfSession, lockWholeRun, type RunRow } from "../store.ts";

/** Maximum number of resumes. Each resume grants the version's limits again. */
const resumesMax = 20;

/** Error codes after which no resume is possible, with the reason. */
const permanentFailures: Partial<Record<RunErrorCode, string>> = {
  output_invalid: "its answers do not fit the schema. Invoke again in the session.",
  session_ended: "its session has ended. Start a new one: invoke without `session_id`.",
  vm_lost: "its machine is lost. Invoke again in the session; the next run gets a new machine.",
};

export async function resume(
  app: Pick<App, "db" | "clock" | "config">,
  runs: RunExecutor,
  actor: Actor,
  id: string,
): Promise<Run> {
  const seen = await getRun(app, actor, id);
  const workspace = requireNotSuspended(workspaceOf(actor, seen));
  if (isOver(seen.status)) {
    const agent = await resolveAgent(app.db, actor, seen.agent_id, "latest");
    if (agent.archived_at) throw agentArchived();
    if (agent.paused || agent.is_all_paused) throw agentPaused(agent.is_all_paused);
    const allowed = planLimits[workspace.plan].runsInFlight;
    const isResumed = await transactionWithRetry(app.db, (tx) =>
      reopenRun(tx, seen, allowed, app.clock.now()),
    );
    await passKillPoint("agent.run.resumed");
    if (isResumed) {
      runs.submit(id);
      runs.notifyChanged(id);
    }
  }
  return get(app, runs, actor, id);
}

/** Queues the run again. Returns false if another request has resumed the run. */
async function reopenRun(
  tx: Db,
  { id, workspace_id: workspaceId }: Pick<RunRow, "id" | "workspace_id">,
  allowed: number,
  at: Date,
): Promise<boolean> {
  await lockCounts(tx, workspaceId);
  const run = await lockWholeRun(tx, id);
  if (!run) throw runNotFound();
  if (!isOver(run.status)) return false;
  await requireResumable(tx, run, at);
  if ((await countInFlight(tx, workspaceId)) >= allowed) throw tooManyRuns(allowed);
  await deleteCancelledApprovals(tx, id);
  await deleteCancelledWaits(tx, id);
  if (run.trigger_type === "schedule") await uncountFailure(tx, id);
  await reopen(tx, id, { type: "run.resumed", at, data: { step: run.steps + 1, resumes: run.resumes + 1 } });
  await passKillPoint("agent.run.resumes");
  return true;
}

async function requireResumable(tx: Db, run: RunRow, at: Date): Promise<void> {
  if (run.status === "completed") throw runNotResumable("it is completed. Invoke again in the session.");
  if (run.waits_turn)
    throw runNotResumable(
      "it ended while it waited for its turn in the session. Invoke again in the session.",
    );
  const why = run.error_code && permanentFailures[run.error_code];
  if (why) throw runNotResumable(why);
  if (run.resumes >= resumesMax)
    throw runNotResumable(`it was resumed ${resumesMax} times. Invoke again in the session.`);
  if (run.expired || (run.output_expires_at !== null && run.output_expires_at <= at))
    throw runNotResumable(
      "its tool results were deleted an hour after it failed. Invoke again in the session.",
    );
  const session = await lockForInvoke(tx, run.agent_id, {
    id: run.session_id,
    endUserId: undefined,
    hasHistory: false,
  });
  await requireNotParking(tx, session.id);
  if ((await findNewestOfSession(tx, session.id)) !== run.id)
    throw runNotResumable("its session has a later run. Invoke again in the session.");
  if (!(await awaitsAnswer(tx, session.id)))
    throw runNotResumable("its last answer is final. Invoke again in the session.");
}
