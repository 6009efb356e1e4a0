/**
 * One restore, carried out: what is there is kept first where it is replaced, the bytes are put in its place, and only
 * after that was said goes what a failure would have gone back to. One that a server died over is gone on with: what is
 * in its place already is not put there once more, for it has been written to since.
 */
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import { transaction } from "#db/db.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { type AddonView, findAddon, target } from "#platform/addons/find.ts";
import type { BackupsContext } from "../context.ts";
import { guestOf, sentenceOf, sourceOf } from "./run-backup.ts";
import { BackupFailed } from "../errors.ts";
import {
  beginRestore,
  endRestore,
  fail,
  findById,
  findRestore,
  forgetRestoreAttempt,
  noteDoubt,
  type RestoreRow,
  wishOfRestore,
} from "../store.ts";
import { attemptsMax, Dropped, gaveUp, Interrupted, within } from "./cancellation.ts";

/** A new add-on may have to wait for its image to be made. */
const newUpWithinMs = 15 * 60_000;
/** One that ran when it was asked for; PostgreSQL may have a log to read again. */
const upWithinMs = 5 * 60_000;
/** One that was just started again is adopted within a moment. */
const askableWithinMs = 60_000;
/** Whoever looks after the add-on has been told long before; nobody's backups wait for longer. */
const doubtMs = 60 * 60_000;
const unkept = "The restore it was to be made for ended first.";

export async function carryOutRestore(
  backups: BackupsContext,
  id: string,
  stops: AbortSignal,
): Promise<void> {
  const { db } = backups.app;
  const found = await findRestore(db, id);
  const addon = found && (await findAddon(db, found.addon_id));
  // With its add-on goes its row.
  if (!found || !addon) return;
  const row = await beginRestore(db, id);
  // It was said; what is left is to clean up.
  if (!row) return cleanUp(backups, addon, id, stops);
  await passKillPoint("restore.begun");
  try {
    if (row.attempts > attemptsMax) throw new BackupFailed(gaveUp);
    await within(
      stops,
      () => wishOfRestore(db, id),
      (signal) => restore(backups, addon, row, signal),
    );
    await passKillPoint("restore.in-place");
    await end(backups, addon, row, { status: "completed", error: null });
    await passKillPoint("restore.completed");
  } catch (error) {
    if (error instanceof Interrupted) return forgetRestoreAttempt(db, id);
    if (!(error instanceof BackupFailed || error instanceof Dropped))
      backups.app.log.error({ restore: id, err: error }, "a restore failed on this server");
    await end(backups, addon, row, await outcomeOf(backups, addon, row, error, stops));
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
  if (row.safety_backup_id !== null) await keep(backups, row.safety_backup_id, signal);
  await passKillPoint("restore.kept");
  const backup = await findById(app.db, row.backup_id);
  if (!backup?.blob_key || backup.sha256 === null || backup.size_bytes === null)
    throw new BackupFailed("The backup is gone.");
  await guestOf(addons, addon.id, row.safety_backup_id === null ? newUpWithinMs : upWithinMs, signal);
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
  /** Nobody could tell what it holds when this is said. */
  isInDoubt?: boolean;
}

/** Throws while it is not to be known: the job comes again, and not for ever. */
async function outcomeOf(
  backups: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  error: unknown,
  stops: AbortSignal,
): Promise<Outcome> {
  const { db, clock } = backups.app;
  const failed = { status: "failed", error: sentenceOf(error) } as const;
  if (error instanceof Dropped) return failed;
  try {
    const isCompleted = await isInPlace(backups, addon, row, { putsBack: true, signal: stops });
    return isCompleted ? { status: "completed", error: null } : failed;
  } catch (unknown) {
    if (stops.aborted) throw unknown;
    const now = clock.now();
    const since = await noteDoubt(db, row.id, now);
    if (now.getTime() - since.getTime() < doubtMs) throw unknown;
    return {
      status: "failed",
      error: "The add-on did not come up again, so nobody could see how far it got.",
      isInDoubt: true,
    };
  }
}

/** An answer may have been lost, or a server died before it could say so. Throws where that is not to be known yet. */
async function isInPlace(
  { app, addons, engines }: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  how: { putsBack: boolean; signal: AbortSignal },
): Promise<boolean> {
  const { safety_backup_id: keptId } = row;
  const kept = keptId === null ? undefined : await findById(app.db, keptId);
  // Nothing is touched before what is there was kept.
  if (kept && kept.status !== "completed") return false;
  await addons.running(addon.id)?.whenUp(askableWithinMs);
  return engines[addon.kind].isInPlace({ addons, addon, id: row.id, ...how }).catch((error: unknown) => {
    // A new add-on held nothing that could be lost.
    if (keptId === null) return false;
    throw error;
  });
}

/** What is there, as a backup like any other. */
async function keep(backups: BackupsContext, id: string, signal: AbortSignal): Promise<void> {
  await backups.keep(id, signal);
  signal.throwIfAborted();
  const kept = await findById(backups.app.db, id);
  if (kept?.status === "completed") return;
  // The add-on noticed the suspension first.
  if (kept && kept.status !== "failed") throw new Interrupted("its workspace is suspended");
  throw new BackupFailed(
    `What the add-on holds could not be kept first, so it was not touched: ${kept?.error ?? "it is gone."}`,
  );
}

async function end(
  { app }: BackupsContext,
  addon: AddonView,
  row: RestoreRow,
  { status, error, isInDoubt = false }: Outcome,
): Promise<void> {
  const { db, clock } = app;
  await transaction(db, async (tx) => {
    if (!(await endRestore(tx, row.id, { status, error, isInDoubt }, clock.now()))) return;
    // One that was not begun, or not to its end: nobody makes it any more.
    const { safety_backup_id: keptId } = row;
    const kept = keptId === null ? undefined : await findById(tx, keptId);
    if (kept) await fail(tx, kept.id, { error: unkept, key: kept.blob_key }, clock.now());
    const deed = status === "completed" ? "backup.restored" : "backup.restore_failed";
    const { workspace_id: workspaceId, name, project_name } = addon;
    const detail = { backup_id: row.backup_id, restore_id: row.id };
    await recordActivity(tx, systemActor("backups"), deed, target(addon), workspaceId, detail);
    if (error === null) return;
    const holds = isInDoubt
      ? "It holds what was restored or what it held before; that is kept as a safety backup."
      : "It holds what it held before.";
    await notify(tx, {
      workspaceId,
      kind: "backup_failed",
      title: `A restore of ${name} (${project_name}) failed`,
      body: `${error} ${holds}`,
      target: target(addon),
    });
  });
}

/** An add-on that does not run is waited for by the job's next run. */
async function cleanUp(
  backups: BackupsContext,
  addon: AddonView,
  id: string,
  stops: AbortSignal,
): Promise<void> {
  const { app, addons, engines } = backups;
  const row = await findRestore(app.db, id);
  if (!row) return;
  // What ended in doubt is decided by what is found now, and has served since it may be: nothing is put back any more.
  // The old data is a backup in any case.
  const wasInDoubt = row.status === "failed" && row.in_doubt_since !== null;
  const look = { putsBack: false, signal: stops };
  const isCompleted =
    row.status === "completed" || (wasInDoubt && (await isInPlace(backups, addon, row, look)));
  await engines[addon.kind].cleanUp({ addons, addon, id, isCompleted });
}
