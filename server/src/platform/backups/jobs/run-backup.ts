/**
 * Runs a backup. The dump is streamed to the store and to a throwaway instance at the same time. Both copies are
 * compared with the source before the backup completes. The next server repeats a backup that a crash interrupted;
 * after three crashes the backup fails.
 */
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { notify } from "#accounts/notifications/notifications.ts";
import { transaction } from "#db/db.ts";
import { BlobNotFound, BlobsFull } from "#lib/blobs/blobs.ts";
import { S3Error } from "#lib/blobs/s3-answers.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { runAllOrAbort } from "#lib/concurrency/run-all-or-abort.ts";
import { tee } from "#lib/streams/tee.ts";
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import { type AddonView, findAddon, target } from "#platform/addons/find.ts";
import type { BackupsContext } from "../context.ts";
import { addonPrefix } from "../blobs.ts";
import type { Source } from "../engines/engine.ts";
import { BackupFailed } from "../errors.ts";
import {
  type BackupRow,
  startAttempt,
  complete,
  fail,
  findById,
  uncountAttempt,
  clearBlobKey,
  decideBackup,
} from "../store.ts";
import { attemptsMax, JobDeleted, retriesExhausted, Interruption, runCancellable } from "./cancellation.ts";

/**
 * Longest wait for a running add-on. After a start of the server an add-on is adopted within a moment; a new add-on
 * takes longer.
 */
const upWithinMs = 60_000;
/** Longest wait for the test restore's memory, which other machines may free meanwhile. */
const roomWithinMs = 10 * 60_000;
const lookAgainMs = 1_000;

interface StoredBackup {
  size_bytes: number;
  sha256: string;
  contents: string;
}

/** Runs the backup's job. Restores call this function as well, for their safety backup. */
export async function runBackup(backups: BackupsContext, id: string, stops: AbortSignal): Promise<void> {
  const { db, clock } = backups.app;
  const found = await findById(db, id);
  const addon = found && (await findAddon(db, found.addon_id));
  if (!found) return;
  if (!addon)
    return void (await fail(db, id, { error: "The add-on was deleted.", key: found.blob_key }, clock.now()));
  const key = `${addonPrefix(addon.id)}${id}.${backups.engines[addon.kind].extension}`;
  const row = await startAttempt(db, id, key, clock.now());
  if (!row) return;
  await passKillPoint("backup.begun");
  try {
    if (row.attempts > attemptsMax) throw new BackupFailed(retriesExhausted);
    const result = await runCancellable(
      stops,
      () => decideBackup(db, id),
      (signal) => dumpAndVerify(backups, addon, key, signal),
    );
    await completeBackup(backups, addon, row, result);
  } catch (error) {
    if (error instanceof Interruption) return uncountAttempt(db, id);
    await failBackup(backups, addon, row, key, error);
  }
}

/**
 * Stores the dump and verifies it. The test restore's instance starts first, because it may wait for memory; the
 * snapshot is taken after that wait. The instance loads the bytes while they are stored. At the end the stored bytes
 * are read back, which verifies the store.
 */
async function dumpAndVerify(
  backups: BackupsContext,
  addon: AddonView,
  key: string,
  signal: AbortSignal,
): Promise<StoredBackup> {
  const { addons, blobs } = backups;
  const engine = backups.engines[addon.kind];
  signal.throwIfAborted();
  return withThrowaway(addons, addon, signal, async (other) => {
    const guest = await waitForGuest(addons, addon.id, upWithinMs, signal);
    const storeAndLoad = async (content: AsyncIterable<Buffer>) => {
      const read = tee(content);
      const [stored] = await runAllOrAbort(
        signal,
        (ends: AbortSignal) => blobs.put(key, read(ends)),
        (ends: AbortSignal) => engine.load(other, addon, read(ends), ends),
      );
      return stored;
    };
    const { stored, description } = await engine.dump(guest, addon, storeAndLoad, signal);
    await passKillPoint("backup.stored");
    const [contents] = await runAllOrAbort(
      signal,
      (ends: AbortSignal) => engine.compare(other, addon, description, ends),
      (ends: AbortSignal) => readBack(sourceOf(backups, key, stored), ends),
    );
    await passKillPoint("backup.verified");
    signal.throwIfAborted();
    return { size_bytes: stored.bytes, sha256: stored.sha256, contents };
  });
}

async function readBack(source: Source, signal: AbortSignal): Promise<void> {
  for await (const _ of source()) signal.throwIfAborted();
}

/** Returns the source of the stored bytes. Reading throws at their end if the bytes changed in the store. */
export function sourceOf(
  { blobs }: Pick<BackupsContext, "blobs">,
  key: string,
  { bytes, sha256 }: { bytes: number; sha256: string },
): Source {
  return async function* () {
    const hash = createHash("sha256");
    let read = 0;
    for await (const piece of (await blobs.get(key)) as AsyncIterable<Buffer>) {
      hash.update(piece);
      read += piece.length;
      yield piece;
    }
    if (read !== bytes || hash.digest("hex") !== sha256)
      throw new BackupFailed("The bytes in the store differ from the bytes that were stored.");
  };
}

/** Resolves to the guest of the add-on's running machine. */
export async function waitForGuest(
  addons: Addons,
  addonId: string,
  withinMs: number,
  signal: AbortSignal,
): Promise<Guest> {
  for (const until = performance.now() + withinMs; ;) {
    const guest = addons.guest(addonId);
    if (guest) return guest;
    if (performance.now() > until) throw new BackupFailed("The add-on is not running.");
    await sleep(lookAgainMs, undefined, { signal });
  }
}

/**
 * Runs work with a throwaway instance, and removes the instance afterwards. If the server dies, its next start removes
 * the instance.
 */
async function withThrowaway<T>(
  addons: Addons,
  addon: AddonView,
  signal: AbortSignal,
  work: (guest: Guest) => Promise<T>,
): Promise<T> {
  for (const until = performance.now() + roomWithinMs; ;) {
    try {
      await using throwaway = await addons.throwaway(addon, signal);
      return await work(throwaway.guest);
    } catch (error) {
      const isFull = error instanceof DomainError && error.code === "no_capacity";
      if (!isFull || performance.now() > until) throw error;
      await sleep(lookAgainMs, undefined, { signal });
    }
  }
}

async function completeBackup(
  { app }: BackupsContext,
  addon: AddonView,
  row: BackupRow,
  result: StoredBackup,
): Promise<void> {
  const { db, clock } = app;
  const isKept = await transaction(db, async (tx) => {
    if (!(await complete(tx, row.id, result, clock.now()))) return false;
    const detail = { backup_id: row.id, kind: row.kind, size_bytes: result.size_bytes };
    await recordActivity(
      tx,
      systemActor("backups"),
      "backup.completed",
      target(addon),
      addon.workspace_id,
      detail,
    );
    return true;
  });
  if (!isKept) throw new JobDeleted("the backup was deleted before it completed");
  await passKillPoint("backup.completed");
}

/**
 * Records the failure before bytes are deleted. A backup that another run completed keeps its bytes, and a failed one
 * records their key.
 */
async function failBackup(
  { app, blobs }: BackupsContext,
  addon: AddonView,
  row: BackupRow,
  key: string,
  cause: unknown,
): Promise<void> {
  const { db, clock, log } = app;
  const error = cause instanceof JobDeleted ? "The backup was deleted." : reasonOf(cause);
  if (!(cause instanceof BackupFailed || cause instanceof JobDeleted))
    log.error({ backup: row.id, err: cause }, "backup failed on this server");
  const hasFailed = await transaction(db, async (tx) => {
    if (!(await fail(tx, row.id, { error, key }, clock.now()))) return false;
    if (cause instanceof JobDeleted) return true;
    await recordActivity(tx, systemActor("backups"), "backup.failed", target(addon), addon.workspace_id, {
      backup_id: row.id,
      kind: row.kind,
    });
    // The restore fails together with its safety backup, and notifies the owner.
    if (row.kind === "safety") return true;
    const { workspace_id: workspaceId, name, project_name } = addon;
    await notify(tx, {
      workspaceId,
      kind: "backup_failed",
      title: `A backup of ${name} (${project_name}) failed`,
      body: `${error} Earlier completed backups are kept.`,
      target: target(addon),
    });
    return true;
  });
  if (!hasFailed) return;
  await passKillPoint("backup.failed");
  await blobs.delete(key).then(
    () => clearBlobKey(db, row.id),
    () => log.warn({ backup: row.id }, "deleting the bytes of a failed backup is left to the next sweep"),
  );
}

/** Returns the error text for the add-on's owner. */
export function reasonOf(error: unknown): string {
  if (error instanceof BackupFailed || error instanceof DomainError) return error.message;
  if (error instanceof BlobsFull) return "The backup store is full.";
  if (error instanceof BlobNotFound) return "The bytes are no longer in the store.";
  if (error instanceof S3Error) return "The backup store returned an error.";
  return "The server failed; its log has the cause.";
}
