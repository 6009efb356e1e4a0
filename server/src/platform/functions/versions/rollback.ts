/** Rolls a function back. The new version has the code of an earlier version, and its image if that is kept. */
import type { Actor } from "#accounts/actor.ts";
import { planLimit } from "#accounts/errors.ts";
import { transaction } from "#db/db.ts";
import { insertQueued, waitForVersion } from "../deploy/queue-deploy.ts";
import { deployInProgress, imagePruned, versionNotFound, versionNotRollbackable } from "../errors.ts";
import { get, lockWritableFunction, type Needs } from "../functions.ts";
import type { FunctionParts } from "../parts.ts";
import type { FunctionRecord } from "../schema.ts";
import { findBuilding, findKeptEqual, findVersionOf, type VersionRow } from "../store.ts";

const wasLive: ReadonlySet<VersionRow["state"]> = new Set(["live", "superseded"]);

/** Rolls a function back. With `wait`, resolves at the end of the new version, or after two minutes. */
export async function rollBackFunction(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  which: { id: string; versionId: string },
  { allowRebuild, wait }: { allowRebuild: boolean; wait: boolean },
): Promise<FunctionRecord> {
  const version = await queueRollback(app, actor, which, allowRebuild);
  if (wait) await waitForVersion(app, version);
  return get(app, parts, actor, which.id);
}

/** Inserts the new version, and returns its id. */
export function queueRollback(
  app: Needs,
  actor: Actor,
  { id, versionId }: { id: string; versionId: string },
  allowRebuild = false,
): Promise<string> {
  return transaction(app.db, async (tx) => {
    const { row, workspace } = await lockWritableFunction(tx, actor, id);
    const to = await findVersionOf(tx, row.id, versionId);
    if (!to) throw versionNotFound();
    if (workspace.plan === "starter") throw planLimit("rollback", false, "pro");
    if (!wasLive.has(to.state)) throw versionNotRollbackable(to.state);
    const other = await findBuilding(tx, row.id);
    if (other) throw deployInProgress(other);
    const kept = to.image_id === null ? await findKeptEqual(tx, to) : to;
    if (!kept && !allowRebuild) throw imagePruned();
    const from = { ...to, image_id: kept?.image_id ?? null, host_id: kept?.host_id ?? null };
    return insertQueued(app, tx, actor, row, { trigger: "rollback", content: to, from });
  });
}
