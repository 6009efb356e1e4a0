/**
 * Deletes an add-on irreversibly. A transaction hides it from all callers, and its process and machine end right after.
 * A repeatable job then removes its files, its backups and at last its row.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { deleteVolumeFiles } from "#machines/volumes.ts";
import type { Addons } from "./addons.ts";
import { requireAddon, target } from "./find.ts";
import { changeRow, deleteRow, findAny, listAllOf } from "./store.ts";
import { volumeOf } from "./instances/volume.ts";

/** Name of the removal's task. Payload: `{ addon }`. */
export const removeAddonTask = "platform.addons.remove";

/** Functions that delete other data of an add-on, after its machine is removed. Each must be safe to repeat. */
export interface AddonParts {
  deleteBackups(addonId: string): Promise<void>;
}

/** Hides the add-on and queues its removal. Allowed while suspended: deleting frees resources. */
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
  // The connections end at once, not only when the job runs.
  addons.end(found.id).catch((error: unknown) => {
    app.log.warn({ addon: found.id, err: error }, "removing a deleted add-on's machine is left to the job");
  });
}

/** Runs the removal job. The machine is removed first, because it uses memory and clients may be connected. */
export async function removeAddon(addons: Addons, id: string, parts: AddonParts): Promise<void> {
  const { app } = addons;
  const row = await findAny(app.db, id);
  if (!row || row.deleted_at === null) return;
  await addons.end(id);
  await passKillPoint("addon.machine-removed");
  await deleteVolumeFiles(app, volumeOf(row));
  await passKillPoint("addon.volume-dropped");
  await parts.deleteBackups(id);
  await app.machines.logs.remove(id);
  await deleteRow(app.db, id);
}

/** Removes all add-ons of a project, including deleted ones whose removal is unfinished. */
export async function removeProjectAddons(
  addons: Addons,
  projectId: string,
  parts: AddonParts,
): Promise<void> {
  const { app } = addons;
  for (const { id, deleted_at } of await listAllOf(app.db, projectId)) {
    if (deleted_at === null) await changeRow(app.db, id, { deleted_at: app.clock.now() });
    await removeAddon(addons, id, parts);
  }
}
