/**
 * An environment goes: for everyone with the transaction that says so, which also frees its host; its app and its row
 * by a job that may be begun again at any point. Production goes with its project alone.
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

/** Ends its app, and is done when that is gone; once more does nothing. */
export interface EnvironmentParts {
  stopEnvironment(environmentId: string): Promise<void>;
}

/** Also in a suspended workspace: what goes costs nobody anything. */
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

/** The job. */
export async function carryOutDeletion(
  { db }: Pick<App, "db">,
  environmentId: string,
  parts: EnvironmentParts,
): Promise<void> {
  await requireNoneUnderWay(db, [environmentId]);
  await parts.stopEnvironment(environmentId);
  await passKillPoint("environment.stopped");
  await deleteRow(db, environmentId);
}

/** A deployment notices within seconds that what it is for is gone; the job comes again. */
export async function requireNoneUnderWay(db: Db, environmentIds: readonly string[]): Promise<void> {
  if (await isAnyUnderWay(db, environmentIds)) throw new Error("a deployment of it has not ended yet");
}
