/**
 * Nobody decided in time: the model is told, or the run fails, as its version says. A sweep finds those whose time is
 * up, and whoever looks at one finds it so, whether or not the sweep was there.
 */
import type { App } from "#app.ts";
import { transaction, type Db } from "#db/db.ts";
import type { MoveDeadlines } from "#machines/suspension/suspension.ts";
import { endFromOutside } from "../runs/end.ts";
import { goOn, lockRun } from "../runs/wait.ts";
import { type ApprovalRecord, close } from "./approvals.ts";
import { findApproval, findDue, isHeld, moveDeadlines } from "./store.ts";

const atOnce = 100;

/** The runs of those whose time is up. One that can't be ended keeps no other's. */
export async function expireDue({ db, log }: Pick<App, "db" | "log">, now: Date): Promise<string[]> {
  const due = await findDue(db, now, atOnce);
  const runs: string[] = [];
  for (const { id, run_id } of due) {
    try {
      if (await expireIfDue(db, run_id, id, now)) runs.push(run_id);
    } catch (error) {
      log.error({ error, approval: id }, "an approval is kept past its time");
    }
  }
  return runs;
}

/** True where its time is up and nothing was known of it yet. */
export function expireIfDue(db: Db, runId: string, id: string, now: Date): Promise<boolean> {
  return transaction(db, async (tx) => {
    const run = await lockRun(tx, runId);
    const approval = run && (await findApproval(tx, runId, id));
    if (approval?.status !== "pending" || !(await isLate(tx, approval, now))) return false;
    await expire(tx, approval, now);
    return true;
  });
}

/** The time of a suspension does not count. A deadline during it moves when it ends. */
export async function isLate(tx: Db, approval: ApprovalRecord, now: Date): Promise<boolean> {
  return approval.expires_at <= now && !(await isHeld(tx, approval));
}

/** Of one that is pending and late, with its run's row locked. */
export async function expire(tx: Db, approval: ApprovalRecord, now: Date): Promise<void> {
  const resolved = await close(tx, approval.id, { status: "expired", at: now, by: null });
  if (approval.on_expire === "deny") return goOn(tx, approval.run_id, [resolved]);
  const message = `Nobody decided in time whether ${approval.tool} may be called.`;
  await endFromOutside(tx, approval.run_id, { code: "approval_expired", message }, now, [resolved]);
}

/** Nobody can decide while a workspace is suspended: that time does not count. */
export const moveApprovalDeadlines: MoveDeadlines = (tx, { workspaceId, ms }) =>
  moveDeadlines(tx, workspaceId, ms);
