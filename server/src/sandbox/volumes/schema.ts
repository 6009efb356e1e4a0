/** Request and response schemas of volumes. */
import { z } from "zod";
import { nextCursor, pageQuery } from "../fields.ts";
import type { VolumeRow } from "./store.ts";

export const VolumeParams = z.strictObject({
  id: z.string().max(64).describe("Id or name of the volume."),
});

/** A name never looks like an id. */
const VolumeName = z
  .string()
  .regex(/^(?!vol_)[a-z0-9][a-z0-9_-]{0,62}$/, {
    error: "must be 1 to 63 of a-z, 0-9, _ and -, begin with a letter or digit, and not begin with vol_",
  })
  .meta({ example: "training-data" });

/** The volume in a sandbox's create. */
export const VolumeReference = z
  .string()
  .refine((text) => /^vol_[a-z0-9]{1,40}$/.test(text) || VolumeName.safeParse(text).success, {
    error: "must be the id or the name of a volume",
  });

const region = z.string().max(64);

export const VolumeCreate = z
  .strictObject({
    name: VolumeName.describe(
      "Name, unique in the workspace: 1 to 63 of a-z, 0-9, `_` and `-`, not beginning with `vol_`.",
    ),
    size_gb: z
      .int()
      .min(1)
      .max(100)
      .default(10)
      .describe("Capacity in GiB, 1 to 100, fixed at creation. Default: 10."),
    region: region
      .optional()
      .describe("Code of a region from `GET /v1/sandboxes/limits`. Default: the default region."),
  })
  .meta({ id: "VolumeCreate" });
export type VolumeCreate = z.output<typeof VolumeCreate>;

export const VolumeMove = z
  .strictObject({
    region: region.describe("Code of the region to move to, from `regions` of `GET /v1/sandboxes/limits`."),
  })
  .meta({ id: "VolumeMove" });

export const VolumeQuery = z.strictObject(pageQuery);
export type VolumeQuery = z.output<typeof VolumeQuery>;

const volumeStatuses = ["available", "attached", "moving"] as const;

export const Volume = z
  .object({
    id: z.string().describe("Id of the volume: `vol_` and 20 letters and digits."),
    name: z.string().describe("Name, unique in the workspace."),
    size_gb: z.int().describe("Capacity in GiB, fixed at creation."),
    region: region.describe("Code of the region that stores the files; during a move, still the old one."),
    status: z
      .enum(volumeStatuses)
      .describe(
        "`attached` from a sandbox's creation to its end, also while it is paused. `moving` during a move, otherwise `available`.",
      ),
    sandbox_id: z
      .string()
      .nullable()
      .describe("Id of the sandbox that the volume is attached to. Null if there is none."),
    used_bytes: z.int().describe("Disk space that the files take, in bytes. 0 before the first use."),
    created_at: z.iso.datetime().describe("Time of creation."),
  })
  .meta({ id: "Volume" });
export type Volume = z.output<typeof Volume>;

export const VolumeList = z
  .object({ items: z.array(Volume).describe("Volumes of the page, newest first."), next_cursor: nextCursor })
  .meta({ id: "VolumeList" });
export type VolumeList = z.output<typeof VolumeList>;

/** The only conversion from a row to JSON; the host reports the used bytes. */
export function toVolume(row: VolumeRow, usedBytes: number): Volume {
  return {
    id: row.id,
    name: row.name,
    size_gb: row.size_gb,
    region: row.region,
    status: row.moving_to !== null ? "moving" : row.sandbox_id !== null ? "attached" : "available",
    sandbox_id: row.sandbox_id,
    used_bytes: usedBytes,
    created_at: row.created_at.toISOString(),
  };
}
