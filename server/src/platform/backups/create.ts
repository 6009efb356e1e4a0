/** Creates a backup: one transaction inserts the row and queues the backup's job. */
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { planLimit } from "#accounts/errors.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { addonNotFound, addonNotRunning } from "../addons/errors.ts";
import { type AddonView, requireAddon, target } from "../addons/find.ts";
import { workspaceOf } from "../projects/projects.ts";
import type { BackupsContext } from "./context.ts";
import { backupRunning, restoreRunning } from "./errors.ts";
import { backupLimits, expiryOf, planForMore, startOfDay } from "./plan.ts";
import { type BackupRow, countManual, insert, lockAddon, findRunning } from "./store.ts";
import { queueBackup } from "./jobs/tasks.ts";

export async function createBackup(
  { app }: Pick<BackupsContext, "app">,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<BackupRow> {
  return transaction(app.db, async (tx) => {
    const { addon, plan } = await lockIdle(tx, actor, projectId, addonId);
    const now = app.clock.now();
    const { dailyQuota } = backupLimits[plan];
    if ((await countManual(tx, addon.id, startOfDay(now))) >= dailyQuota)
      throw planLimit("backups_per_day", dailyQuota, planForMore(plan), addon.workspace_id);
    const row = await queue(tx, addon, { kind: "manual", plan, now });
    await recordActivity(tx, actor, "backup.created", target(addon), addon.workspace_id, {
      backup_id: row.id,
    });
    return row;
  });
}

/**
 * Returns a running add-on that the actor may change, and locks it until the transaction ends. No other backup or
 * restore of the add-on can start meanwhile.
 */
export async function lockIdle(
  tx: Db,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<{ addon: AddonView; plan: Plan }> {
  const found = await requireAddon({ db: tx }, actor, projectId, addonId);
  const { plan } = requireNotSuspended(workspaceOf(actor, found));
  if (!(await lockAddon(tx, found.id))) throw addonNotFound();
  const addon = await requireAddon({ db: tx }, actor, projectId, addonId);
  const runs = await findRunning(tx, addon.id);
  if (runs.backup) throw backupRunning();
  if (runs.restore) throw restoreRunning();
  if (addon.status !== "running") throw addonNotRunning(addon.status);
  return { addon, plan };
}

/** Inserts the backup and queues its job, in the transaction that locks the add-on's row. */
export async function queue(
  tx: Db,
  addon: AddonView,
  { kind, plan, now }: { kind: BackupRow["kind"]; plan: Plan; now: Date },
): Promise<BackupRow> {
  const row = await insert(tx, {
    addon_id: addon.id,
    kind,
    status: "pending",
    version: addon.version,
    expires_at: expiryOf(plan, now),
    created_at: now,
  });
  // A safety backup has no job: the restore's job makes it.
  if (kind !== "safety") await queueBackup(tx, row.id);
  return row;
}
