/** Request and response schemas of snapshots. */
import { z } from "zod";
import { nextCursor, pageQuery } from "../fields.ts";
import { createdQuery } from "../sandboxes/schema.ts";
import { sizeNames } from "../sandboxes/limits/sizes.ts";
import type { NamedRow } from "./store.ts";

export const SnapshotParams = z.strictObject({
  id: z.string().max(64).describe("Id of the snapshot: `snap_` and 20 letters and digits."),
});

export const SnapshotCreate = z
  .strictObject({
    name: z
      .string()
      .regex(/^(?!snap_)[a-z0-9][a-z0-9_-]{0,62}$/, {
        error: "must be 1 to 63 of a-z, 0-9, - and _, begin with a letter or digit and not with snap_",
      })
      .optional()
      .describe(
        "Name, unique in the workspace; a sandbox create can use it instead of the id. Default: none. Example: `prepared`.",
      ),
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
  ...pageQuery,
});
export type SnapshotQuery = z.output<typeof SnapshotQuery>;

export const Snapshot = z
  .object({
    id: z.string().describe("Id of the snapshot: `snap_` and 20 letters and digits."),
    name: z.string().nullable().describe("Name, unique in the workspace. Null if none was given."),
    sandbox_id: z.string().describe("Id of the source sandbox, which may no longer exist."),
    template: z.string().describe("Template of the source sandbox."),
    size: z
      .enum(sizeNames)
      .describe("Size of the source sandbox, and of each sandbox created from the snapshot."),
    cpu: z.number().describe("Number of vCPUs."),
    memory_mb: z.int().describe("Memory of the sandbox in MiB."),
    region: z.string().describe("Code of the source sandbox's region, such as `eu-1`."),
    size_mb: z.int().describe("Size on disk in MiB, rounded up: memory and files together."),
    status: z.enum(snapshotStatuses).describe("`damaged`: no sandbox can be created from it."),
    created_at: z.iso.datetime().describe("Time of creation."),
    expires_at: z.iso
      .datetime()
      .nullable()
      .describe("Time of deletion, postponed by each use. Null means never."),
  })
  .meta({ id: "Snapshot" });
export type Snapshot = z.output<typeof Snapshot>;

export const SnapshotList = z
  .object({
    items: z.array(Snapshot).describe("Named snapshots of the page, newest first by default."),
    next_cursor: nextCursor,
  })
  .meta({ id: "SnapshotList" });

/** The only conversion from a row to JSON. */
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
