/**
 * Retention of images. Live images, images of a running deployment, and the last three images that an environment
 * served are always kept. The ten newest other images of a project are kept for thirty days, within the plan's byte
 * limit. A sweep of all projects runs every hour, and after each build.
 */
import type { App } from "#app.ts";
import { listAppImages, pruneAppImages, sweepAppImages, sweepTask, tagOf } from "#builds/app-images.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { type ImageUse, lockImages, projectsWithImages, usesOfImages } from "./store.ts";

type Image = Awaited<ReturnType<typeof listAppImages>>[number];

const rollbackTargets = 3;
const keptImages = 10;
const keptMs = 30 * 24 * 60 * 60_000;
const sweepEveryMs = 60 * 60_000;
/**
 * Limit in bytes for a project's images that are not always kept. A layer that several images share counts for each.
 */
const imageBytes = {
  starter: 5 * 1024 ** 3,
  pro: 20 * 1024 ** 3,
  team: 50 * 1024 ** 3,
} as const;

/**
 * Returns the tags of images that are always kept: live ones, those about to be live, and those kept for a rollback.
 * Pure function.
 */
export function heldTags(
  images: readonly Pick<Image, "number" | "deployment_id">[],
  uses: readonly ImageUse[],
): { live: ReadonlySet<string>; pinned: ReadonlySet<string> } {
  const live = new Set<string>();
  const targets = new Map<string, Set<string>>();
  for (const { tag, environmentId, isLive, isUnderWay } of uses) {
    if (tag === null) continue;
    if (isLive || isUnderWay) live.add(tag);
    if (isUnderWay) continue;
    const served = targets.get(environmentId) ?? new Set();
    if (served.size < rollbackTargets) targets.set(environmentId, served.add(tag));
  }
  // Built images that a deployment is about to record.
  const underWay = new Set(uses.filter((use) => use.isUnderWay).map(({ deploymentId }) => deploymentId));
  for (const image of images)
    if (image.deployment_id !== null && underWay.has(image.deployment_id)) live.add(tagOf(image));
  return { live, pinned: new Set([...live, ...[...targets.values()].flatMap((tags) => [...tags])]) };
}

/** Returns the ids of images to prune. `images` are sorted newest first. Pure function. */
export function surplus(
  images: readonly Pick<Image, "id" | "number" | "deployment_id" | "created_at" | "size_bytes">[],
  uses: readonly ImageUse[],
  { now, maxBytes }: { now: Date; maxBytes: number },
): string[] {
  const { pinned } = heldTags(images, uses);
  let count = 0;
  let bytes = 0;
  return images.flatMap((image) => {
    if (pinned.has(tagOf(image))) return [];
    count += 1;
    bytes += image.size_bytes;
    const isOld = now.getTime() - image.created_at.getTime() > keptMs;
    return isOld || count > keptImages || bytes > maxBytes ? [image.id] : [];
  });
}

/** Waits until all retention of the project's images that has already started has ended. */
export async function waitForRetention({ db }: Pick<App, "db">, projectId: string): Promise<void> {
  await transaction(db, (tx) => lockImages(tx, projectId));
}

/** Runs the retention job. */
export async function sweepImages(
  app: Pick<App, "db" | "machines" | "config" | "clock" | "log">,
): Promise<void> {
  for (const { id, plan } of await projectsWithImages(app.db)) {
    await transaction(app.db, async (tx) => {
      await lockImages(tx, id);
      const now = app.clock.now();
      const limits = { now, maxBytes: imageBytes[plan] };
      await pruneAppImages(tx, surplus(await listAppImages(tx, id), await usesOfImages(tx, id), limits), now);
    });
  }
  await sweepAppImages(app);
  const runAt = new Date(app.clock.now().getTime() + sweepEveryMs);
  await addJob(app.db, sweepTask, {}, { key: `${sweepTask}:later`, runAt });
}
