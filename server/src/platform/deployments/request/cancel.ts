import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { type DeploymentRow, getDeployment, target } from "../deployments.ts";
import { deploymentNotCancellable } from "../errors.ts";
import { requestCancel, cancelQueued } from "../store.ts";

/**
 * Cancels a deployment: a queued one at once, a running one soon after. Repeated calls have no effect. Refused once the
 * switch of the address has begun.
 */
export async function cancelDeployment(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
): Promise<DeploymentRow> {
  return transaction(app.db, async (tx) => {
    const row = await getDeployment({ db: tx }, actor, id);
    if (row.status === "cancelled" || row.cancel_asked) return row;
    const isCancelled = (await cancelQueued(tx, id, null, app.clock.now())) || (await requestCancel(tx, id));
    const now = await getDeployment({ db: tx }, actor, id);
    if (!isCancelled) throw deploymentNotCancellable(now.status);
    await recordActivity(tx, actor, "deployment.cancel_asked", target(row), row.workspace_id);
    return now;
  });
}
