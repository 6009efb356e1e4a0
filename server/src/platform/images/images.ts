/**
 * A project's images, as its owner sees them: the list, the live one, and those kept for a rollback. `builds` owns rows
 * and bytes. This folder owns the retention (retention.ts).
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { listAppImages, pruneAppImages, sweepTask, tagOf } from "#builds/app-images.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { getProject, target } from "../projects/projects.ts";
import { imageLive, imageNotFound } from "./errors.ts";
import { heldTags } from "./retention.ts";
import { scanAndNotify } from "./scan.ts";
import { type ImageView, type RegistryImage, type ScanReport, toImage, toScan } from "./schema.ts";
import { lockImages, usesOfImages } from "./store.ts";

/** Lists the images of a project, newest first. */
export async function list(app: Pick<App, "db">, actor: Actor, projectId: string): Promise<RegistryImage[]> {
  const project = await getProject(app, actor, projectId);
  return (await views(app.db, project.id)).map(toImage);
}

/**
 * Deletes an image. The next sweep without a machine on it removes the bytes. A rollback to a deleted image is refused,
 * or builds the image again.
 */
export async function deleteImage(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  projectId: string,
  tag: string,
): Promise<void> {
  const project = await getProject(app, actor, projectId);
  await transaction(app.db, async (tx) => {
    await lockImages(tx, project.id);
    const image = (await views(tx, project.id)).find((view) => view.tag === tag);
    if (!image) throw imageNotFound();
    if (image.isLive) throw imageLive(tag);
    await pruneAppImages(tx, [image.row.id], app.clock.now());
    await addJob(tx, sweepTask, {}, { key: sweepTask });
    await recordActivity(tx, actor, "image.deleted", target(project), project.workspace_id, { tag });
  });
}

/** Scans an image on request. Resolves when the advisory sources have responded. */
export async function scan(
  app: Pick<App, "db" | "machines" | "clock">,
  actor: Actor,
  projectId: string,
  tag: string,
): Promise<ScanReport> {
  const project = await getProject(app, actor, projectId);
  const scanned = await scanAndNotify(app, project.id, tag);
  if (!scanned) throw imageNotFound();
  return toScan(scanned);
}

async function views(db: Db, projectId: string): Promise<ImageView[]> {
  const rows = await listAppImages(db, projectId);
  const { live, pinned } = heldTags(rows, await usesOfImages(db, projectId));
  return rows.map((row) => {
    const tag = tagOf(row);
    return { row, tag, isLive: live.has(tag), isPinned: pinned.has(tag) };
  });
}
