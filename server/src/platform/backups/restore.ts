/** Requests a restore: into the backup's own add-on, after a safety backup, or into a new add-on. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { createAddon } from "../addons/create.ts";
import { type AddonView, target } from "../addons/find.ts";
import { AddonCreate } from "../addons/schema.ts";
import type { BackupsContext } from "./context.ts";
import { lockIdle, queue } from "./create.ts";
import { backupNotCompleted, backupNotFound } from "./errors.ts";
import { getBackup } from "./manage.ts";
import { type BackupRow, findOf, insertRestore, type RestoreRow } from "./store.ts";
import { queueRestore } from "./jobs/tasks.ts";

interface Ids {
  projectId: string;
  addonId: string;
  backupId: string;
}

export async function restoreBackup(
  backups: Pick<BackupsContext, "app" | "addons">,
  actor: Actor,
  ids: Ids,
  name: string | undefined,
): Promise<RestoreRow> {
  const { addon, backup } = await getBackup(backups, actor, ids);
  if (backup.status !== "completed") throw backupNotCompleted(backup.status);
  return name === undefined
    ? restoreInPlace(backups, actor, ids)
    : restoreIntoNew(backups, actor, { addon, backup, name });
}

async function restoreInPlace(
  { app }: Pick<BackupsContext, "app">,
  actor: Actor,
  ids: Ids,
): Promise<RestoreRow> {
  return transaction(app.db, async (tx) => {
    const { addon, plan } = await lockIdle(tx, actor, ids.projectId, ids.addonId);
    const backup = await requireCompleted(tx, addon.id, ids.backupId);
    const safety = await queue(tx, addon, { kind: "safety", plan, now: app.clock.now() });
    return insertQueuedRestore(tx, actor, { backup, into: addon, safety, now: app.clock.now() });
  });
}

/** Inserts the new add-on and its restore in one transaction. */
async function restoreIntoNew(
  { app, addons }: Pick<BackupsContext, "app" | "addons">,
  actor: Actor,
  { addon, backup, name }: { addon: AddonView; backup: BackupRow; name: string },
): Promise<RestoreRow> {
  const { kind, size, environment_id, options } = addon;
  const input = AddonCreate.parse({ ...options, kind, size, environment_id, name });
  let restore: RestoreRow | undefined;
  const alongside = async (tx: Db, into: AddonView) => {
    const completed = await requireCompleted(tx, addon.id, backup.id);
    restore = await insertQueuedRestore(tx, actor, {
      backup: completed,
      into,
      safety: undefined,
      now: app.clock.now(),
    });
  };
  await createAddon(addons, actor, addon.project_id, input, { alongside, isEnvironmentKnown: true });
  return restore!;
}

/** Returns a completed backup and locks it, so that its bytes are kept during the restore. */
async function requireCompleted(tx: Db, addonId: string, backupId: string): Promise<BackupRow> {
  const backup = await findOf(tx, addonId, backupId);
  if (!backup) throw backupNotFound();
  if (backup.status !== "completed") throw backupNotCompleted(backup.status);
  return backup;
}

async function insertQueuedRestore(
  tx: Db,
  actor: Actor,
  {
    backup,
    into,
    safety,
    now,
  }: { backup: BackupRow; into: AddonView; safety: BackupRow | undefined; now: Date },
): Promise<RestoreRow> {
  const row = await insertRestore(tx, {
    backup_id: backup.id,
    addon_id: into.id,
    status: "running",
    safety_backup_id: safety?.id ?? null,
    created_at: now,
  });
  await queueRestore(tx, row.id);
  await recordActivity(tx, actor, "backup.restore_begun", target(into), into.workspace_id, {
    backup_id: backup.id,
    restore_id: row.id,
  });
  return row;
}
