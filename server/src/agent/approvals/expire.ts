/**
 * Expires approvals. Depending on the version's `on_expire`, the model gets a note, or the run fails. A sweep finds
 * late approvals. A request that reads or decides a run also expires the run's late approvals, so correctness does not
 * depend on the sweep.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import type { MoveDeadlines } from "#machines/suspension/suspension.ts";
import { endFromOutside } from "../runs/journal/end-run.ts";
import { continueRun } from "../runs/engine/waiting-run.ts";
import { lockRun } from "../runs/store.ts";
import { closePending } from "./approvals.ts";
import { findLateRuns, lateOfRun, moveDeadlines } from "./store.ts";

const runsAtOnce = 100;

/** Expires late approvals and returns the ids of their runs. An error with one run does not affect the other runs. */
export async function expireDue({ db, log }: Pick<App, "db" | "log">, now: Date): Promise<string[]> {
  const runs: string[] = [];
  for (const run of await findLateRuns(db, now, runsAtOnce)) {
    try {
      if (await expireIfDue(db, run, now)) runs.push(run);
    } catch (error) {
      log.error({ error, run }, "could not expire the late approvals of a run");
    }
  }
  return runs;
}

/** Expires the late approvals of a run. Returns false if the run has none. */
export function expireIfDue(db: Db, runId: string, now: Date): Promise<boolean> {
  return transaction(db, async (tx) => {
    const run = await lockRun(tx, runId);
    return run !== undefined && expireLate(tx, runId, now);
  });
}

/**
 * Expires all late approvals of a run in one transaction. The caller holds the lock on the run's row. Returns false if
 * no approval is late. A deadline that passes during a suspension moves when the suspension ends.
 */
export async function expireLate(tx: Db, runId: string, now: Date): Promise<boolean> {
  const late = await lateOfRun(tx, runId, now);
  if (late.length === 0) return false;
  const ids = late.map(({ id }) => id);
  const resolved = await closePending(tx, ids, { status: "expired", at: now, by: null });
  const fatal = late.find(({ on_expire }) => on_expire === "fail");
  if (fatal) {
    const message = `The approval of ${fatal.tool} expired without a decision.`;
    await endFromOutside(tx, runId, { code: "approval_expired", message }, now, resolved);
  } else {
    await continueRun(tx, runId, resolved);
  }
  return true;
}

/** Moves the deadlines of approvals, because a suspended workspace accepts no decisions. */
export const moveApprovalDeadlines: MoveDeadlines = (tx, { workspaceId, ms }) =>
  moveDeadlines(tx, workspaceId, ms);
