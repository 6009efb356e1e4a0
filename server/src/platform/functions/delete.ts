/**
 * Deletes a function. The transaction hides it and frees its name. A repeatable job then stops its instances, and last
 * deletes its row with versions and minutes. Image retention then deletes the unused images.
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

/** Allowed while suspended: deleting frees resources. */
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
 * Runs as a job. A running deploy notices the deletion and ends. Instances go first, because they cost memory and
 * could still be called.
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
