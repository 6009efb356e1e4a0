/**
 * Deletes an environment. The transaction hides it and frees its host; a repeatable job removes its app and its row.
 * Production is deleted with its project only.
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

/** Payload: `{ environment }`. */
export const removeEnvironmentTask = "platform.environments.remove";

/** Stops the app and resolves when it is removed. Safe to repeat. */
export interface EnvironmentParts {
  stopEnvironment(environmentId: string): Promise<void>;
}

/** Allowed while suspended: deleting frees resources. */
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

/** Runs as a job. */
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

/** A deployment notices the deletion within seconds, and the job is retried. */
export async function requireNoneUnderWay(db: Db, environmentIds: readonly string[]): Promise<void> {
  if (await isAnyUnderWay(db, environmentIds))
    throw new Error("a deployment of the environment has not ended yet");
}
