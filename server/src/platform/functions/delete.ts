/**
 * Deletes a function. A transaction hides the function and frees its name. A repeatable job then stops its instances,
 * and deletes its row with versions and minutes at last. Image retention later deletes the unused images.
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

/** Name of the removal's task. Payload: `{ function }`. */
export const removeFunctionTask = "platform.functions.remove";

/** Hides the function and queues its removal. Allowed while suspended: deleting frees resources. */
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

/**
 * Runs the removal job. A running deploy notices the deletion and ends. Instances are removed first, because they cost
 * memory and could still be called.
 */
export async function removeFunction(
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
