/** A volume on its way to a sandbox and back: always in the transaction that makes or ends the sandbox. */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import type { HostVolume } from "#machines/volumes.ts";
import { volumeElsewhere, volumeNotFound } from "./errors.ts";
import { changeVolume, lockVolume, releaseRow, type VolumeRow } from "./store.ts";
import { addVolume, defaultSizeGb, knownRegion, requireFree } from "./volumes.ts";

export interface Wanted {
  /** Id or name. One that is named and not there is made. */
  reference: string;
  /** Where it has to be; undefined where it may be anywhere. */
  region: string | undefined;
  sandboxId: string;
  workspace: ReachableWorkspace;
  actor: Actor;
}

/** The volume is the sandbox's from this transaction on; of many that ask at once, one gets it. */
export async function attachVolume(
  app: Pick<App, "machines" | "config" | "clock">,
  tx: Db,
  wanted: Wanted,
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
  { reference, region, workspace, actor }: Wanted,
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
  // Otherwise somebody else's transaction made it meanwhile.
  const row = added ?? (await find());
  if (!row) throw volumeNotFound();
  return row;
}

/** Its bytes were made: from now on they have to be there. */
export async function markMade(app: Pick<App, "db">, { id }: { id: string }): Promise<void> {
  await changeVolume(app.db, id, { is_made: true });
}

/** Whatever the sandbox has is free again. */
export function releaseVolume(tx: Db, sandboxId: string): Promise<void> {
  return releaseRow(tx, sandboxId);
}
