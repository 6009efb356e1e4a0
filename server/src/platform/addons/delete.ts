/**
 * An add-on goes: for everyone with the transaction that says so, and its process and machine right after; whatever is
 * left of these, its files and its backups by a job that may be begun again at any point, and its row last. Nothing of it can be had back.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { dropVolume } from "#machines/volumes.ts";
import type { Addons } from "./addons.ts";
import { requireAddon, target } from "./find.ts";
import { changeRow, deleteRow, findAny, listAllOf } from "./store.ts";
import { volumeOf } from "./instances/volume.ts";

/** Payload: `{ addon }`. */
export const removeAddonTask = "platform.addons.remove";

/** What an add-on has beside its machine: is done when it is gone, and does nothing once more. */
export interface AddonParts {
  dropBackups(addonId: string): Promise<void>;
}

/** Also in a suspended workspace: what goes costs nobody anything. */
export async function deleteAddon(
  addons: Addons,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<void> {
  const { app } = addons;
  const found = await requireAddon(app, actor, projectId, addonId);
  const place = { id: volumeOf(found), region: found.region };
  const bytes = found.is_made ? await app.machines.host.volumeUsage(place).catch(() => null) : 0;
  await transaction(app.db, async (tx) => {
    const row = await requireAddon({ db: tx }, actor, projectId, addonId);
    await changeRow(tx, row.id, { deleted_at: app.clock.now() });
    await addJob(tx, removeAddonTask, { addon: row.id }, { key: `addon:${row.id}` });
    await recordActivity(tx, actor, "addon.deleted", target(row), row.workspace_id, {
      project: row.project_name,
      kind: row.kind,
      destroyed: { database: row.database, bytes },
    });
  });
  // Nobody who is connected has it for as long as the job waits for its turn.
  addons.end(found.id).catch((error: unknown) => {
    app.log.warn({ addon: found.id, err: error }, "a deleted add-on's machine is left to the job");
  });
}

/** The job. Its machine first: it costs, and somebody may still be connected. */
export async function carryOutDeletion(addons: Addons, id: string, parts: AddonParts): Promise<void> {
  const { app } = addons;
  const row = await findAny(app.db, id);
  if (!row || row.deleted_at === null) return;
  await addons.end(id);
  await passKillPoint("addon.machine-removed");
  await dropVolume(app, volumeOf(row));
  await passKillPoint("addon.volume-dropped");
  await parts.dropBackups(id);
  await app.machines.logs.remove(id);
  await deleteRow(app.db, id);
}

/** All of a project's, deleted ones that are not gone yet included. */
export async function removeProjectAddons(
  addons: Addons,
  projectId: string,
  parts: AddonParts,
): Promise<void> {
  const { app } = addons;
  for (const { id, deleted_at } of await listAllOf(app.db, projectId)) {
    if (deleted_at === null) await changeRow(app.db, id, { deleted_at: app.clock.now() });
    await carryOutDeletion(addons, id, parts);
  }
}
