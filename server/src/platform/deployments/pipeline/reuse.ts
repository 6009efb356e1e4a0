/** Reuse of an image that the project has: the same build, or the same digest in a registry. */
import { waitForRetention } from "#platform/images/retention.ts";
import type { BuiltImage } from "./pipeline.ts";
import type { Context, Steps } from "./steps.ts";

/**
 * Finds an image with this key. Retention keeps an image that a deployment names, so the tag is recorded first. The
 * image is then checked again, after any retention that had already started.
 */
export async function reuseImage(
  { app, pipeline }: Context,
  steps: Steps,
  { id }: { id: string },
  key: Buffer,
): Promise<BuiltImage | undefined> {
  const found = await pipeline.findEqualImage(app, id, key);
  if (!found) return undefined;
  await steps.note({ image_tag: found.tag, image_id: found.imageId });
  await waitForRetention(app, id);
  return pipeline.findAppImage(app, id, found.tag);
}
