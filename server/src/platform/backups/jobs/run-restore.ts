/**
 * Runs a restore. A restore in place makes a safety backup first, and then replaces the data. The old data is deleted
 * only after the result is recorded. After a crash the next server continues. A completed replacement is not repeated,
 * because clients may have written since.
 */
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import { transaction } from "#db/db.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { type AddonView, findAddon, target } from "#platform/addons/find.ts";
import type { BackupsContext } from "../context.ts";
import { waitForGuest, reasonOf, sourceOf } from "./run-backup.ts";
import { BackupFailed } from "../errors.ts";
import {
  startRestoreAttempt,
  endRestore,
  fail,
  findById,
  findRestore,
  uncountRestoreAttempt,
  recordDoubt,
  type RestoreRow,
  decideRestore,
} from "../store.ts";
import { attemptsMax, JobDeleted, retriesExhausted, Interruption, runCancellable } from "./cancellation.ts";

/** Longest wait for a new add-on, whose image may have to be built first. */
const newUpWithinMs = 15 * 60_000;
/**
 * Longest wait for the add-on. The add-on ran at the time of the request, but PostgreSQL may have to replay its log.
 */
const upWithinMs = 5 * 60_000;
/**
 * Longest wait for an add-on whose state is checked. After a restart of the server an add-on is adopted within a
 * moment.
 */
const askableWithinMs = 60_000;
/**
 * Time after which a restore with an unknown result ends. The owner was notified of the add-on's failure long before,
 * and backups wait for the restore.
 */
const doubtMs = 60 * 60_000;
const unkept = "The restore that needed this backup ended first.";

export async function runRestore(backups: BackupsContext, id: string, stops: AbortSignal): Promise<void> {
  const { db } = backups.app;
  const found = await findRestore(db, id);
  const addon = found && (await findAddon(db, found.addon_id));
  // The deletion of an add-on deletes this row.
  if (!found || !addon) return;
  const row = await startRestoreAttempt(db, id);
  // The result is already recorded, and only the clean-up is left.
  if (!row) return cleanUp(backups, addon, id, stops);
  await passKillPoint("restore.begun");
  try {
    if (row.attempts > attemptsMax) throw new BackupFailed(retriesExhausted);
    await runCancellable(
      stops,
      () => decideRestore(db, id),
      (signal) => restore(backups, addon, row, signal),
    );
    await passKillPoint("restore.in-place");
    await finishRestore(backups, addon, row, { status: "completed", error: null });
    await passKillPoint("restore.completed");
  } catch (error) {
    if (error instanceof Interruption) return uncountRestoreAttempt(db, id);
    if (!(error instanceof BackupFailed || error instanceof JobDeleted))
      backups.app.log.error({ restore: id, err: error }, "restore failed on this server");
    await finishRestore(backups, addon, row, await outcomeOf(backups, addon, row, error, stops));
  }
  await cleanUp(backups, addon, id, stops);
}

async function restore(
  backups: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  signal: AbortSignal,
): Promise<void> {
  const { addons, app } = backups;
  if (row.safety_backup_id !== null) await makeSafetyBackup(backups, row.safety_backup_id, signal);
  await passKillPoint("restore.kept");
  const backup = await findById(app.db, row.backup_id);
  if (!backup?.blob_key || backup.sha256 === null || backup.size_bytes === null)
    throw new BackupFailed("The backup is gone.");
  await waitForGuest(addons, addon.id, row.safety_backup_id === null ? newUpWithinMs : upWithinMs, signal);
  const stored = { bytes: backup.size_bytes, sha256: backup.sha256 };
  await backups.engines[addon.kind].restore({
    addons,
    addon,
    id: row.id,
    source: sourceOf(backups, backup.blob_key, stored),
    contents: backup.contents,
    signal,
  });
}

interface Outcome {
  status: "completed" | "failed";
  error: string | null;
  /** True if the add-on's content is unknown when the result is recorded. */
  isInDoubt?: boolean;
}

/**
 * Returns the outcome of a restore that failed. Throws while the outcome is unknown, up to a time limit; the job then
 * retries.
 */
async function outcomeOf(
  backups: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  error: unknown,
  stops: AbortSignal,
): Promise<Outcome> {
  const { db, clock } = backups.app;
  const failed = { status: "failed", error: reasonOf(error) } as const;
  if (error instanceof JobDeleted) return failed;
  try {
    const isCompleted = await isInPlace(backups, addon, row, { putsBack: true, signal: stops });
    return isCompleted ? { status: "completed", error: null } : failed;
  } catch (unknown) {
    if (stops.aborted) throw unknown;
    const now = clock.now();
    const since = await recordDoubt(db, row.id, now);
    if (now.getTime() - since.getTime() < doubtMs) throw unknown;
    return {
      status: "failed",
      error: "The add-on did not start again, so the result of the restore is unknown.",
      isInDoubt: true,
    };
  }
}

/**
 * Returns true if the restored data is in place. The database is checked, because a response may be lost, or a server
 * may die before it records the result. Throws while the state is unknown.
 */
async function isInPlace(
  { app, addons, engines }: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  how: { putsBack: boolean; signal: AbortSignal },
): Promise<boolean> {
  const { safety_backup_id: keptId } = row;
  const kept = keptId === null ? undefined : await findById(app.db, keptId);
  // The add-on's data is not changed before the safety backup has completed.
  if (kept && kept.status !== "completed") return false;
  await addons.running(addon.id)?.whenUp(askableWithinMs);
  return engines[addon.kind].isInPlace({ addons, addon, id: row.id, ...how }).catch((error: unknown) => {
    // A new add-on has no data to lose.
    if (keptId === null) return false;
    throw error;
  });
}

/** Makes a safety backup of the add-on's current data. */
async function makeSafetyBackup(backups: BackupsContext, id: string, signal: AbortSignal): Promise<void> {
  await backups.makeSafetyBackup(id, signal);
  signal.throwIfAborted();
  const kept = await findById(backups.app.db, id);
  if (kept?.status === "completed") return;
  // The safety backup was interrupted by the suspension before this restore was.
  if (kept && kept.status !== "failed") throw new Interruption("the workspace is suspended");
  throw new BackupFailed(
    `The safety backup failed, so the add-on's data is unchanged: ${kept?.error ?? "it is gone."}`,
  );
}

async function finishRestore(
  { app }: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  { status, error, isInDoubt = false }: Outcome,
): Promise<void> {
  const { db, clock } = app;
  await transaction(db, async (tx) => {
    if (!(await endRestore(tx, row.id, { status, error, isInDoubt }, clock.now()))) return;
    // After the end of the restore, an unfinished safety backup is not needed.
    const { safety_backup_id: keptId } = row;
    const kept = keptId === null ? undefined : await findById(tx, keptId);
    if (kept) await fail(tx, kept.id, { error: unkept, key: kept.blob_key }, clock.now());
    const action = status === "completed" ? "backup.restored" : "backup.restore_failed";
    const { workspace_id: workspaceId, name, project_name } = addon;
    const detail = { backup_id: row.backup_id, restore_id: row.id };
    await recordActivity(tx, systemActor("backups"), action, target(addon), workspaceId, detail);
    if (error === null) return;
    const holds = isInDoubt
      ? "The add-on has either the restored data or its earlier data; the earlier data is kept as a safety backup."
      : "The add-on has its earlier data.";
    await notify(tx, {
      workspaceId,
      kind: "backup_failed",
      title: `A restore of ${name} (${project_name}) failed`,
      body: `${error} ${holds}`,
      target: target(addon),
    });
  });
}

/** Removes what the restore left. If the add-on is not running, the job is retried and waits for the add-on. */
async function cleanUp(
  backups: BackupsContext,
  addon: AddonView,
  id: string,
  stops: AbortSignal,
): Promise<void> {
  const { app, addons, engines } = backups;
  const row = await findRestore(app.db, id);
  if (!row) return;
  // After an unknown result, the clean-up follows the state found now. Clients may have written to the data since, so
  // the old data is not put back; a safety backup contains it.
  const wasInDoubt = row.status === "failed" && row.in_doubt_since !== null;
  const check = { putsBack: false, signal: stops };
  const isCompleted =
    row.status === "completed" || (wasInDoubt && (await isInPlace(backups, addon, row, check)));
  await engines[addon.kind].cleanUp({ addons, addon, id, isCompleted });
}
