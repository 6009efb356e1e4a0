/** Reads and deletes the backups of an add-on, and changes their schedule. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { addonNotFound } from "../addons/errors.ts";
import { type AddonView, requireAddon, target } from "../addons/find.ts";
import { workspaceOf } from "../projects/projects.ts";
import type { BackupsContext } from "./context.ts";
import { backupInUse, backupNotFound } from "./errors.ts";
import { backupLimits, nextDaily, startOfDay } from "./plan.ts";
import {
  type BackupRow,
  countManual,
  findOf,
  isBeingRestored,
  listRestores,
  listRows,
  lockAddon,
  markDeleted,
  type RestoreRow,
  setSchedule,
} from "./store.ts";
import { sweepTask } from "./jobs/tasks.ts";

type Needs = Pick<BackupsContext, "app">;

export interface BackupInfoView {
  retentionDays: number;
  dailyQuota: number;
  usedToday: number;
  addon: AddonView;
}

/** Lists the backups of an add-on, newest first. */
export async function listBackups(
  { app }: Needs,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<BackupRow[]> {
  const { id } = await requireAddon(app, actor, projectId, addonId);
  return listRows(app.db, id);
}

/** Lists the restores into this add-on, newest first. */
export async function restoresInto(
  { app }: Needs,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<RestoreRow[]> {
  const { id } = await requireAddon(app, actor, projectId, addonId);
  return listRestores(app.db, id);
}

export async function getBackup(
  { app }: Needs,
  actor: Actor,
  { projectId, addonId, backupId }: { projectId: string; addonId: string; backupId: string },
): Promise<{ addon: AddonView; backup: BackupRow }> {
  const addon = await requireAddon(app, actor, projectId, addonId);
  const backup = await findOf(app.db, addon.id, backupId);
  if (!backup) throw backupNotFound();
  return { addon, backup };
}

export async function getRestore(
  { app }: Needs,
  actor: Actor,
  { projectId, addonId, restoreId }: { projectId: string; addonId: string; restoreId: string },
): Promise<RestoreRow> {
  const restores = await restoresInto({ app }, actor, projectId, addonId);
  const found = restores.find(({ id }) => id === restoreId);
  if (!found) throw backupNotFound();
  return found;
}

export async function backupInfo(
  { app }: Needs,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<BackupInfoView> {
  const addon = await requireAddon(app, actor, projectId, addonId);
  const { retentionDays, dailyQuota } = backupLimits[workspaceOf(actor, addon).plan];
  const usedToday = await countManual(app.db, addon.id, startOfDay(app.clock.now()));
  return { retentionDays, dailyQuota, usedToday, addon };
}

/** Turns daily backups on or off. */
export async function toggleAutoBackup(
  { app }: Needs,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<AddonView> {
  return transaction(app.db, async (tx) => {
    const { id } = await requireAddon({ db: tx }, actor, projectId, addonId);
    if (!(await lockAddon(tx, id))) throw addonNotFound();
    const addon = await requireAddon({ db: tx }, actor, projectId, addonId);
    const { plan } = requireNotSuspended(workspaceOf(actor, addon));
    const isOn = !addon.auto_backup;
    if (isOn && !backupLimits[plan].canAutoBackup) throw planLimit("auto_backup", false, "pro");
    await setSchedule(tx, id, { isOn, nextAt: isOn ? nextDaily(id, app.clock.now()) : null });
    const action = isOn ? "addon.auto_backup_on" : "addon.auto_backup_off";
    await recordActivity(tx, actor, action, target(addon), addon.workspace_id);
    return requireAddon({ db: tx }, actor, projectId, addonId);
  });
}

/** Deletes a backup, and stops it if it runs. Allowed while suspended. */
export async function deleteBackup(
  { app }: Needs,
  actor: Actor,
  ids: { projectId: string; addonId: string; backupId: string },
): Promise<void> {
  await transaction(app.db, async (tx) => {
    const { addon, backup } = await getBackup({ app: { ...app, db: tx } }, actor, ids);
    await lockAddon(tx, addon.id);
    if (await isBeingRestored(tx, backup.id)) throw backupInUse();
    await markDeleted(tx, backup.id, app.clock.now());
    await addJob(tx, sweepTask, {}, { key: sweepTask });
    await recordActivity(tx, actor, "backup.deleted", target(addon), addon.workspace_id, {
      backup_id: backup.id,
    });
  });
}
