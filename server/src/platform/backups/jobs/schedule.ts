/**
 * Starts daily backups, each at its add-on's own time of day. A single job starts the backups that are due, and queues
 * itself for the next minute. If the server or the add-on was down, the backup is made as soon as possible, and the
 * owner is notified once.
 */
import { notify } from "#accounts/notifications/notifications.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { findAddon, target } from "#platform/addons/find.ts";
import type { BackupsContext } from "../context.ts";
import { queue } from "../create.ts";
import { backupLimits, nextDaily } from "../plan.ts";
import { type Due, listDue, lockAddon, recordMissed, setSchedule, findRunning } from "../store.ts";
import { sweepTask, tickTask } from "./tasks.ts";

const everyMs = 60_000;
/** Delay of a backup after which the owner is notified. A restart of the server or the add-on takes less. */
const lateAfterMs = 60 * 60_000;

export async function tick(backups: BackupsContext): Promise<void> {
  const { db, clock, log } = backups.app;
  try {
    await startDueBackups(backups);
  } catch (error) {
    log.warn({ error }, "listing due backups failed; the next round retries");
  }
  await addJob(db, sweepTask, {}, { key: sweepTask });
  await addJob(db, tickTask, {}, { key: tickTask, runAt: new Date(clock.now().getTime() + everyMs) });
}

export async function startDueBackups(backups: Pick<BackupsContext, "app">): Promise<void> {
  const { db, clock } = backups.app;
  for (const due of await listDue(db, clock.now())) await startDueBackup(backups, due);
}

async function startDueBackup({ app }: Pick<BackupsContext, "app">, due: Due): Promise<void> {
  const now = app.clock.now();
  await transaction(app.db, async (tx) => {
    if (!(await lockAddon(tx, due.id))) return;
    const addon = await findAddon(tx, due.id);
    if (!addon?.auto_backup || !addon.next_backup_at || addon.next_backup_at > now) return;
    const isLate = now.getTime() - addon.next_backup_at.getTime() > lateAfterMs;
    const isRunning = addon.status === "running";
    if (isLate && !addon.backup_missed_at) {
      await recordMissed(tx, addon.id, addon.next_backup_at);
      const { workspace_id: workspaceId, name, project_name } = addon;
      await notify(tx, {
        workspaceId,
        kind: "backup_failed",
        title: `The daily backup of ${name} (${project_name}) was missed`,
        body: `It was due at ${addon.next_backup_at.toISOString()}. ${isRunning ? "It is made now." : "It is made as soon as the add-on runs."}`,
        target: target(addon),
      });
    }
    const { backup, restore } = await findRunning(tx, addon.id);
    if (!isRunning || backup || restore) return;
    await setSchedule(tx, addon.id, { isOn: true, nextAt: nextDaily(addon.id, now) });
    // The plan was lowered below daily backups. Daily backups continue when the plan is raised again.
    if (!backupLimits[due.plan].canAutoBackup) return;
    await queue(tx, addon, { kind: "auto", plan: due.plan, now });
  });
}
