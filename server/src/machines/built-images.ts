/**
 * Images that were built of machines, beside those this host makes of recipes. Whoever built one says how long it is
 * wanted; a machine or a snapshot that stands on it keeps it on after that. So an image goes when it is neither wanted
 * nor used, which this looks for: after a deletion, at the start, and from time to time.
 */
import type { App } from "#app.ts";
import { imagesInUse } from "./store.ts";

/**
 * The same of images that were built of repositories. `isUnderWay`: it is being built, and nobody can know of it yet.
 */
export async function dropUnusedAppImages(
  app: Pick<App, "db" | "machines" | "log">,
  wanted: () => Promise<ReadonlySet<string>>,
  isUnderWay: (id: string) => boolean,
): Promise<void> {
  const { host, pool } = app.machines;
  const there = (await host.appImages()).filter((id) => !isUnderWay(id));
  const keep = await wanted();
  const unwanted = there.filter((id) => !keep.has(id));
  // Warm machines of a template would keep its image.
  for (const id of unwanted) await pool.forget(id);
  const used = await imagesInUse(app.db, host.id);
  for (const id of unwanted) {
    if (used.has(id)) continue;
    await host.removeAppImage(id);
    app.log.info({ image: id }, "an app's image that nobody wants any more was removed");
  }
}

/** `wanted` is asked after the images were listed: what was built since is in neither list, and stays. */
export async function dropUnusedImages(
  app: Pick<App, "db" | "machines" | "log">,
  wanted: () => Promise<ReadonlySet<string>>,
): Promise<void> {
  const { host, pool } = app.machines;
  const there = await host.builtImages();
  const keep = await wanted();
  const unwanted = there.filter(({ id }) => !keep.has(id));
  // Nobody's yet: they would stand on it for as long as they wait.
  for (const { id } of unwanted) await pool.forget(id);
  const used = await imagesInUse(app.db, host.id);
  for (const { id } of unwanted) {
    if (used.has(id)) continue;
    await host.removeImage(id);
    app.log.info({ image: id }, "an image that nobody wants any more was removed");
  }
}
