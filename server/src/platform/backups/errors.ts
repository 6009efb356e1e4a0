import { defineError } from "#lib/errors.ts";

export const backupNotFound = defineError("backup_not_found", 404, () => "No such backup.");

export const backupRunning = defineError(
  "backup_running",
  409,
  () => "The add-on has a backup in progress: wait until it has ended.",
);

export const restoreRunning = defineError(
  "restore_running",
  409,
  () => "The add-on has a restore in progress: wait until it has ended.",
);

export const backupNotCompleted = defineError(
  "backup_not_completed",
  409,
  (status: string) => `The backup is ${status}: only a completed one can be downloaded or restored.`,
);

export const backupInUse = defineError(
  "backup_in_use",
  409,
  () => "The backup is being restored: delete it after the restore has ended.",
);

export const signatureInvalid = defineError(
  "signature_invalid",
  403,
  () => "The URL's signature is invalid: request a new URL.",
);

export const urlExpired = defineError("url_expired", 403, () => "The URL has expired: request a new URL.");

/** A failed backup or restore. The message is for the add-on's owner. */
export class BackupFailed extends Error {
  override readonly name = "BackupFailed";
}
