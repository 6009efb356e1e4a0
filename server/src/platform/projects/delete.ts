/**
 * Deletes a project. A transaction hides it and frees its name, hosts and domain. A repeatable job removes containers,
 * images and repository. The row is deleted last, because it records the owner of the remaining parts.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { requireNoneUnderWay } from "../environments/delete.ts";
import { idsOf, markAllDeleted } from "../environments/of-project.ts";
import { projectNotFound } from "./errors.ts";
import { target } from "./projects.ts";
import { deleteRow, findAny, lockOwn, markDeleted } from "./store.ts";

/** Name of the removal's task. Payload: `{ project }`. */
export const removeProjectTask = "platform.projects.remove";

/**
 * Functions that remove the parts of a project outside its rows. Each resolves when the part is removed, and is safe to
 * repeat.
 */
export interface ProjectParts {
  removeApps(projectId: string): Promise<void>;
  removeAddons(projectId: string): Promise<void>;
  dropImages(projectId: string): Promise<void>;
  removeRepository(projectId: string): Promise<void>;
}

/** Hides the project and queues its removal. Allowed while suspended: deleting frees resources. */
export async function deleteProject(app: Pick<App, "db" | "clock">, actor: Actor, id: string): Promise<void> {
  await transaction(app.db, async (tx) => {
    const row = await lockOwn(tx, id, workspaceIds(actor));
    if (!row) throw projectNotFound();
    const now = app.clock.now();
    await markAllDeleted(tx, row.id, now);
    await markDeleted(tx, row.id, now);
    await addJob(tx, removeProjectTask, { project: row.id }, { key: `project:${row.id}` });
    await recordActivity(tx, actor, "project.deleted", target(row), row.workspace_id);
  });
}

/** Runs the removal job. Containers are removed first, because they cost memory and may still get visitors. */
export async function removeProject(
  { db }: Pick<App, "db">,
  projectId: string,
  parts: ProjectParts,
): Promise<void> {
  const row = await findAny(db, projectId);
  if (row && row.deleted_at === null) return;
  await requireNoneUnderWay(db, await idsOf(db, projectId));
  await parts.removeApps(projectId);
  await passKillPoint("project.apps-removed");
  await parts.removeAddons(projectId);
  await passKillPoint("project.addons-removed");
  await parts.dropImages(projectId);
  await passKillPoint("project.images-dropped");
  await parts.removeRepository(projectId);
  await deleteRow(db, projectId);
}
