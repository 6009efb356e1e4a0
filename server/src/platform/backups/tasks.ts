/** The background work of this folder, by the names and keys it is queued under. */

/** Payload: `{ backup }`. */
export const backupTask = "platform.backups.run";
/** Payload: `{ restore }`. */
export const restoreTask = "platform.backups.restore";
/** What is due is begun, what is wanted no more goes; once a minute. */
export const tickTask = "platform.backups.tick";
export const sweepTask = "platform.backups.sweep";

export const jobKey = {
  backup: (id: string) => `backup:${id}`,
  restore: (id: string) => `restore:${id}`,
};
