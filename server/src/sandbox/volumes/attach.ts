/**
 * Attaches a volume to a sandbox and releases it, always in the transaction that creates or ends the sandbox.
 */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import type { HostVolume } from "#machines/volumes.ts";
import { volumeElsewhere, volumeNotFound } from "./errors.ts";
import { changeVolume, lockVolume, releaseRow, type VolumeRow } from "./store.ts";
import { addVolume, defaultSizeGb, knownRegion, requireFree } from "./volumes.ts";

export interface VolumeRequest {
  /** Id or name of the volume. If no volume has the name, the volume is created. */
  reference: string;
  /** Required region; undefined for any. */
  region: string | undefined;
  sandboxId: string;
  workspace: ReachableWorkspace;
  actor: Actor;
}

/** Attaches the volume in this transaction; only one of many concurrent calls gets it. */
export async function attachVolume(
  app: Pick<App, "machines" | "config" | "clock">,
  tx: Db,
  wanted: VolumeRequest,
): Promise<HostVolume & { isNew: boolean }> {
  const row = requireFree(await findOrAdd(app, tx, wanted));
  if (wanted.region !== undefined && wanted.region !== row.region)
    throw volumeElsewhere(row.name, row.region);
  await changeVolume(tx, row.id, { sandbox_id: wanted.sandboxId });
  return { id: row.id, region: row.region, sizeBytes: row.size_gb * 1024 ** 3, isNew: !row.is_made };
}

async function findOrAdd(
  app: Pick<App, "machines" | "config" | "clock">,
  tx: Db,
  { reference, region, workspace, actor }: VolumeRequest,
): Promise<VolumeRow> {
  const find = () => lockVolume(tx, reference, [workspace.id]);
  const there = await find();
  if (there) return there;
  if (reference.startsWith("vol_")) throw volumeNotFound();
  const added = await addVolume(app, tx, {
    workspace,
    actor,
    name: reference,
    sizeGb: defaultSizeGb,
    region: knownRegion(app, region),
  });
  // If the insert added no row, a concurrent transaction created the volume.
  const row = added ?? (await find());
  if (!row) throw volumeNotFound();
  return row;
}

/** Records that the volume's bytes exist; from now on missing bytes are an error. */
export async function markMade(app: Pick<App, "db">, { id }: { id: string }): Promise<void> {
  await changeVolume(app.db, id, { is_made: true });
}

/** Releases the sandbox's volume, if any. */
export function releaseVolume(tx: Db, sandboxId: string): Promise<void> {
  return releaseRow(tx, sandboxId);
}
