/**
 * Images built from machines or repositories, in contrast to images that this host makes from recipes. The builder of
 * an image decides how long it is wanted. A machine or a snapshot that uses the image keeps it longer. An image that is
 * neither wanted nor used is removed: after a deletion, at start, and periodically.
 */
import type { App } from "#app.ts";
import { imagesInUse } from "./store.ts";

/**
 * Removes unused images of repositories. `isUnderWay` is true for an image that is being built, so that no record can
 * name it yet.
 */
export async function removeUnusedAppImages(
  app: Pick<App, "db" | "machines" | "log">,
  wanted: () => Promise<ReadonlySet<string>>,
  isUnderWay: (id: string) => boolean,
): Promise<void> {
  const { host, pool } = app.machines;
  const there = (await host.appImages()).filter((id) => !isUnderWay(id));
  const keep = await wanted();
  const unwanted = there.filter((id) => !keep.has(id));
  // Warm machines of a template would keep its image in use.
  for (const id of unwanted) await pool.removeTemplate(id);
  const used = await imagesInUse(app.db, host.id);
  for (const id of unwanted) {
    if (used.has(id)) continue;
    await host.removeAppImage(id);
    app.log.info({ image: id }, "removed the unused image of an app");
  }
}

/**
 * Removes images that are neither wanted nor used. `wanted` is read after the images are listed, so an image built in
 * between is in neither list, and stays.
 */
export async function removeUnusedImages(
  app: Pick<App, "db" | "machines" | "log">,
  wanted: () => Promise<ReadonlySet<string>>,
): Promise<void> {
  const { host, pool } = app.machines;
  const there = await host.builtImages();
  const keep = await wanted();
  const unwanted = there.filter(({ id }) => !keep.has(id));
  // Pooled machines have no owner, and would use the image for as long as they wait.
  for (const { id } of unwanted) await pool.removeTemplate(id);
  const used = await imagesInUse(app.db, host.id);
  for (const { id } of unwanted) {
    if (used.has(id)) continue;
    await host.removeImage(id);
    app.log.info({ image: id }, "removed an unused image");
  }
}
