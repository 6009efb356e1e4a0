/** The wire of images. */
import { z } from "zod";
import type { ImageView } from "./images.ts";

const timestamp = z.iso.datetime();

export const ImageParams = z.strictObject({
  project_id: z.guid(),
  tag: z.string().max(128),
});

export const RegistryImage = z
  .object({
    tag: z.string(),
    digest: z.string().describe("Of its manifest."),
    size_bytes: z.int().describe("Of all its layers, those that others share with it included."),
    created_at: timestamp,
    deployment_id: z.guid().nullable().describe("What it was built for."),
    live: z.boolean(),
    pinned: z.boolean().describe("It is live, being deployed, or one an environment can roll back to."),
  })
  .meta({ id: "RegistryImage" });
export type RegistryImage = z.output<typeof RegistryImage>;

/** The only way from a row to JSON. */
export function toImage({ row, tag, isLive, isPinned }: ImageView): RegistryImage {
  return {
    tag,
    digest: row.digest,
    size_bytes: row.size_bytes,
    created_at: row.created_at.toISOString(),
    deployment_id: row.deployment_id,
    live: isLive,
    pinned: isPinned,
  };
}
