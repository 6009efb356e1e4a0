/**
 * Volumes: files that outlive sandboxes, mounted at `/persist` of one sandbox at a time. This folder owns the list of
 * volumes, their assignment and their region. If many sandboxes request a volume at the same time, one of them gets the
 * volume. The chosen sandbox keeps the volume while it is paused, and releases the volume at its end, whatever the
 * reason. An empty volume never replaces missing bytes. A delete removes the bytes before it returns. Bytes are created
 * at the first use; until then a volume is a row.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { nextTier, tierLimits } from "#accounts/plans.ts";
import { homeWorkspace, referableIds, requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { regionsOf } from "#lib/regions.ts";
import { deleteVolumeFiles } from "#machines/volumes.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { invalidField } from "../sandboxes/errors.ts";
import { volumeExists, volumeInUse, volumeMoving, volumeNotFound } from "./errors.ts";
import { toVolume, type Volume, type VolumeCreate, type VolumeList, type VolumeQuery } from "./schema.ts";
import {
  changeVolume,
  countVolumeRows,
  deleteRow,
  insertVolume,
  listVolumeRows,
  lockAndCountVolumes,
  lockVolume,
  type VolumeRow,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "config" | "clock">;

/** Size in GiB of a volume that a create makes. */
export const defaultSizeGb = 10;

export async function create(app: Needs, actor: Actor, input: VolumeCreate): Promise<Volume> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  const region = knownRegion(app, input.region);
  const row = await app.db
    .transaction()
    .execute((tx) =>
      addVolume(app, tx, { workspace, actor, name: input.name, sizeGb: input.size_gb, region }),
    );
  if (!row) throw volumeExists(input.name);
  return toVolume(row, 0);
}

/** Inserts a row within the tier's limit; undefined if the name is taken. */
export async function addVolume(
  app: Pick<App, "machines" | "clock">,
  tx: Db,
  wanted: {
    workspace: ReturnType<typeof homeWorkspace>;
    actor: Actor;
    name: string;
    sizeGb: number;
    region: string;
  },
): Promise<VolumeRow | undefined> {
  const { workspace, actor } = wanted;
  const allowed = tierLimits[workspace.sandboxTier].volumes;
  if ((await lockAndCountVolumes(tx, workspace.id)) >= allowed) {
    throw planLimit("volumes", allowed, nextTier(workspace.sandboxTier), workspace.id);
  }
  const row = await insertVolume(tx, {
    id: newId("vol_"),
    workspace_id: workspace.id,
    name: wanted.name,
    size_gb: wanted.sizeGb,
    region: wanted.region,
    host_id: app.machines.host.id,
    created_at: app.clock.now(),
  });
  if (row) await recordActivity(tx, actor, "sandbox_volume.created", target(row), row.workspace_id);
  return row;
}

export async function list(
  app: Pick<App, "db" | "machines" | "secrets">,
  actor: Actor,
  query: VolumeQuery,
): Promise<VolumeList> {
  const rows = await listVolumeRows(app.db, workspaceIds(actor), {
    before:
      query.cursor === undefined ? undefined : openCursor<Position>(app, actor, "volumes", query.cursor),
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  const more = rows.length > query.limit && last;
  return {
    items: await Promise.all(page.map((row) => render(app, row))),
    next_cursor: more
      ? sealCursor(app, actor, "volumes", { createdAt: last.created_at_text, id: last.id })
      : null,
  };
}

export async function get(app: Pick<App, "db" | "machines">, actor: Actor, id: string): Promise<Volume> {
  const row = await lockVolume(app.db, id, referableIds(actor, id, "vol_"));
  if (!row) throw volumeNotFound();
  return render(app, row);
}

interface Position {
  createdAt: string;
  id: string;
}

/** Deletes a volume, whose bytes are removed on return. After a crash, the next start completes the removal. */
export async function remove(app: Needs, actor: Actor, reference: string): Promise<void> {
  const row = await app.db.transaction().execute(async (tx) => {
    const free = await lockFree(tx, actor, reference);
    await recordActivity(tx, actor, "sandbox_volume.deleted", target(free), free.workspace_id);
    return changeVolume(tx, free.id, { deleted_at: app.clock.now() });
  });
  await passKillPoint("volume.deleted");
  await destroy(app, row);
}

/** Removes the bytes of a volume whose row is marked as deleted. */
export async function destroy(app: Pick<App, "db" | "machines">, row: VolumeRow): Promise<void> {
  await deleteVolumeFiles(app, row.id);
  await deleteRow(app.db, row.id);
}

/** Finds and locks a volume of the actor that no sandbox has and that is not moving. */
export async function lockFree(tx: Db, actor: Actor, reference: string): Promise<VolumeRow> {
  const row = await lockVolume(tx, reference, referableIds(actor, reference, "vol_"));
  if (!row) throw volumeNotFound();
  return requireFree(row);
}

export function requireFree(row: VolumeRow): VolumeRow {
  if (row.sandbox_id !== null) throw volumeInUse(row.name, row.sandbox_id);
  if (row.moving_to !== null) throw volumeMoving(row.name, row.moving_to);
  return row;
}

/** Returns the region with this code. The default region if `code` is absent. */
export function knownRegion(app: Pick<App, "config">, code: string | undefined): string {
  const regions = regionsOf(app.config);
  const region = regions.find((known) => known.code === (code ?? regions[0].code));
  if (region) return region.code;
  const known = regions.map((one) => one.code).join(", ");
  throw invalidField("region", `unknown region "${code}"; known: ${known}.`);
}

export async function render(app: Pick<App, "machines">, row: VolumeRow): Promise<Volume> {
  const usedBytes = row.is_made ? await app.machines.host.volumeUsage(row) : 0;
  return toVolume(row, Math.min(usedBytes, row.size_gb * 1024 ** 3));
}

/** True if a create may use this reference; a missing volume with a valid name would be created. */
export async function isVolume(db: Db, workspaceId: string, reference: string): Promise<boolean> {
  if (!reference.startsWith("vol_")) return true;
  return (await lockVolume(db, reference, [workspaceId])) !== undefined;
}

/** Number of a workspace's volumes. */
export function countVolumes(db: Db, workspaceId: string): Promise<number> {
  return countVolumeRows(db, workspaceId);
}

export function target(row: VolumeRow): { kind: string; id: string; label: string } {
  return { kind: "sandbox_volume", id: row.id, label: row.name };
}
