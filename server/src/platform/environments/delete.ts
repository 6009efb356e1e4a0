/**
 * Deletes an environment. A transaction hides the environment and frees its host. A repeatable job then removes its app
 * and its row. Production is deleted only with its project.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { getProject } from "../projects/projects.ts";
import { target } from "./environments.ts";
import { environmentNotFound, environmentProtected } from "./errors.ts";
import { deleteRow, isAnyUnderWay, lockRow, markDeleted } from "./store.ts";

/** Name of the removal's task. Payload: `{ environment }`. */
export const removeEnvironmentTask = "platform.environments.remove";

/** Functions that remove the app of an environment. Each resolves when the app is removed, and is safe to repeat. */
export interface EnvironmentParts {
  stopEnvironment(environmentId: string): Promise<void>;
}

/** Hides the environment and queues its removal. Allowed while suspended: deleting frees resources. */
export async function deleteEnvironment(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  projectId: string,
  environmentId: string,
): Promise<void> {
  await transaction(app.db, async (tx) => {
    const project = await getProject({ db: tx }, actor, projectId);
    const row = await lockRow(tx, project.id, environmentId);
    if (!row) throw environmentNotFound();
    if (row.kind === "production") throw environmentProtected();
    await markDeleted(tx, [row.id], app.clock.now());
    await addJob(tx, removeEnvironmentTask, { environment: row.id }, { key: `environment:${row.id}` });
    await recordActivity(tx, actor, "environment.deleted", target(row), project.workspace_id, {
      project: project.name,
    });
  });
}

/** Runs the removal job. */
export async function removeEnvironment(
  { db }: Pick<App, "db">,
  environmentId: string,
  parts: EnvironmentParts,
): Promise<void> {
  await requireNoneUnderWay(db, [environmentId]);
  await parts.stopEnvironment(environmentId);
  await passKillPoint("environment.stopped");
  await deleteRow(db, environmentId);
}

/** Throws while a deployment runs. The deployment notices the deletion within seconds, and the job is retried. */
export async function requireNoneUnderWay(db: Db, environmentIds: readonly string[]): Promise<void> {
  if (await isAnyUnderWay(db, environmentIds))
    throw new Error("a deployment of the environment has not ended yet");
}
