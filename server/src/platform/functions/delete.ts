/**
 * A function goes: for everyone with the transaction that says so, which also frees its name. Its instances follow by a
 * job that may be begun again at any point, and its row last, with its versions and what was measured: their images are
 * wanted by nobody then, and the sweep takes them.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { sweepTask } from "#builds/app-images.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { functionNotFound } from "./errors.ts";
import { target } from "./functions.ts";
import type { FunctionParts } from "./parts.ts";
import { deleteRow, findAny, lockOwn, markDeleted } from "./store.ts";

/** Payload: `{ function }`. */
export const removeFunctionTask = "platform.functions.remove";

/** Also in a suspended workspace: what goes costs nobody anything. */
export async function deleteFunction(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
): Promise<void> {
  await transaction(app.db, async (tx) => {
    const row = await lockOwn(tx, id, workspaceIds(actor));
    if (!row) throw functionNotFound();
    await markDeleted(tx, row.id, app.clock.now());
    await addJob(tx, removeFunctionTask, { function: row.id }, { key: `function:${row.id}` });
    await recordActivity(tx, actor, "function.deleted", target(row), row.workspace_id);
  });
}

/** The job. A deploy that is under way ends by itself: it is for nobody any more. Instances first: they cost, and they may still be called. */
export async function carryOutDeletion(
  { db }: Pick<App, "db">,
  functionId: string,
  parts: Pick<FunctionParts, "stop">,
): Promise<void> {
  const row = await findAny(db, functionId);
  if (row && row.deleted_at === null) return;
  await parts.stop(functionId);
  await passKillPoint("function.stopped");
  await transaction(db, async (tx) => {
    await deleteRow(tx, functionId);
    await addJob(tx, sweepTask, {}, { key: sweepTask });
  });
}
