/** The wire: what a snapshot looks like in JSON, and what its calls take. */
import { z } from "zod";
import { createdQuery } from "../sandboxes/schema.ts";
import { sizeNames } from "../sandboxes/sizes.ts";
import type { NamedRow } from "./store.ts";

export const SnapshotParams = z.strictObject({ id: z.string().max(64) });

export const SnapshotCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^(?!snap_)[a-z0-9][a-z0-9_-]{0,62}$/, {
        error: "must be 1 to 63 of a-z, 0-9, - and _, begin with a letter or digit and not with snap_",
      })
      .optional()
      .describe("Unique in the workspace; a create can name it in place of the id."),
  })
  .meta({ id: "SnapshotCreate" });
export type SnapshotCreate = z.output<typeof SnapshotCreate>;

const snapshotStatuses = ["ready", "damaged"] as const;

export const SnapshotQuery = z.strictObject({
  sandbox_id: z.string().max(64).optional().describe("Id of the source sandbox. Extension."),
  name: z.string().max(64).optional().describe("Name of the snapshot. Extension."),
  template: z.string().min(1).max(128).optional().describe("Template of the source sandbox. Extension."),
  status: z
    .array(z.enum(snapshotStatuses))
    .min(1)
    .optional()
    .describe("Status to include. Repeat the parameter for several. Extension."),
  ...createdQuery,
  cursor: z.string().max(2048).optional(),
  limit: z.int().min(1).max(100).default(50),
});
export type SnapshotQuery = z.output<typeof SnapshotQuery>;

export const Snapshot = z
  .object({
    id: z.string(),
    name: z.string().nullable(),
    sandbox_id: z.string().describe("What it was taken of, which may be gone."),
    template: z.string(),
    size: z.enum(sizeNames),
    cpu: z.number().describe("vCPUs"),
    memory_mb: z.int(),
    region: z.string(),
    size_mb: z.int().describe("On disk: memory and files together."),
    status: z.enum(snapshotStatuses).describe("`damaged`: no sandbox can be created from it."),
    created_at: z.iso.datetime(),
    expires_at: z.iso.datetime().nullable().describe("Moves with each use; null means never."),
  })
  .meta({ id: "Snapshot" });
export type Snapshot = z.output<typeof Snapshot>;

export const SnapshotList = z
  .object({ items: z.array(Snapshot), next_cursor: z.string().nullable() })
  .meta({ id: "SnapshotList" });

/** The only way from a row to JSON. */
export function toSnapshot(row: NamedRow): Snapshot {
  return {
    id: row.id,
    name: row.name,
    sandbox_id: row.sandbox_id,
    template: row.template,
    size: row.size as Snapshot["size"],
    cpu: row.cpu,
    memory_mb: row.memory_mb,
    region: row.region,
    size_mb: Math.ceil(row.bytes / 1024 ** 2),
    status: row.damaged ? "damaged" : "ready",
    created_at: row.created_at.toISOString(),
    expires_at: row.expires_at?.toISOString() ?? null,
  };
}
