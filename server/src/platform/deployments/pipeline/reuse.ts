/** Reuses an image that the project has, from an equal build or with an equal digest. */
import { waitForRetention } from "#platform/images/retention.ts";
import type { BuiltImage } from "./pipeline.ts";
import type { Context, Steps } from "./steps.ts";

/**
 * Returns an image with this key; undefined if there is none. Retention keeps an image that a deployment names, so the
 * tag is recorded first. Then the image is looked up again, once all retention that had already started has ended.
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
