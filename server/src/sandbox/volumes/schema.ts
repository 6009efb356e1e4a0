/** The wire of volumes. */
import { z } from "zod";
import type { VolumeRow } from "./store.ts";

export const VolumeParams = z.strictObject({
  id: z.string().max(64).describe("The volume's id, or its name."),
});

/** A name never looks like an id. */
export const VolumeName = z
  .string()
  .regex(/^(?!vol_)[a-z0-9][a-z0-9_-]{0,62}$/, {
    error: "must be 1 to 63 of a-z, 0-9, _ and -, begin with a letter or digit, and not begin with vol_",
  })
  .meta({ example: "training-data" });

/** What a sandbox is made with. */
export const VolumeReference = z
  .string()
  .refine((text) => /^vol_[a-z0-9]{1,40}$/.test(text) || VolumeName.safeParse(text).success, {
    error: "must be the id or the name of a volume",
  });

const region = z.string().max(64);

export const VolumeCreate = z
  .strictObject({
    name: VolumeName,
    size_gb: z.int().min(1).max(100).default(10).describe("What it holds, in GiB; fixed."),
    region: region.optional().describe("A code from `regions` of the limits; the default one where absent."),
  })
  .meta({ id: "VolumeCreate" });
export type VolumeCreate = z.output<typeof VolumeCreate>;

export const VolumeMove = z.strictObject({ region }).meta({ id: "VolumeMove" });

export const VolumeQuery = z.strictObject({
  cursor: z.string().max(2048).optional(),
  limit: z.int().min(1).max(100).default(50),
});
export type VolumeQuery = z.output<typeof VolumeQuery>;

export const volumeStatuses = ["available", "attached", "moving"] as const;

export const Volume = z
  .object({
    id: z.string(),
    name: z.string(),
    size_gb: z.int(),
    region,
    status: z
      .enum(volumeStatuses)
      .describe("`attached` from a sandbox's creation to its end, also while it is paused."),
    sandbox_id: z.string().nullable().describe("The sandbox that has it."),
    used_bytes: z.int().describe("What its files take; 0 before its first use."),
    created_at: z.iso.datetime(),
  })
  .meta({ id: "Volume" });
export type Volume = z.output<typeof Volume>;

export const VolumeList = z
  .object({ items: z.array(Volume), next_cursor: z.string().nullable() })
  .meta({ id: "VolumeList" });
export type VolumeList = z.output<typeof VolumeList>;

/** The only way from a row to JSON; what it holds is asked of its host. */
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
