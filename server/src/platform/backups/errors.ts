import { defineError } from "#lib/errors.ts";

export const backupNotFound = defineError("backup_not_found", 404, () => "No such backup.");

export const backupRunning = defineError(
  "backup_running",
  409,
  () => "A backup of the add-on is being made: wait until it has ended.",
);

export const restoreRunning = defineError(
  "restore_running",
  409,
  () => "A backup is being restored there: wait until that has ended.",
);

export const backupNotCompleted = defineError(
  "backup_not_completed",
  409,
  (status: string) => `The backup is ${status}: only a completed one can be downloaded or restored.`,
);

export const backupInUse = defineError(
  "backup_in_use",
  409,
  () => "The backup is being restored: delete it when that has ended.",
);

export const signatureInvalid = defineError(
  "signature_invalid",
  403,
  () => "This address was not signed for what it is used for: ask for another one.",
);

export const urlExpired = defineError(
  "url_expired",
  403,
  () => "The time of this address is over: ask for another one.",
);

/** What a backup or a restore failed for; the message is for the add-on's owner. */
export class BackupFailed extends Error {
  override readonly name = "BackupFailed";
}
