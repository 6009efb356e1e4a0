/** Background jobs of this folder: their task names, keys and queues. */
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";

/** Name of the task that runs a backup. Payload: `{ backup }`. */
export const backupTask = "platform.backups.run";
/** Name of the task that runs a restore. Payload: `{ restore }`. */
export const restoreTask = "platform.backups.restore";
/** Name of the task that starts due backups and prunes old ones, once a minute. */
export const tickTask = "platform.backups.tick";
export const sweepTask = "platform.backups.sweep";

/** Longest backoff after failures of this server, in milliseconds. */
const retryAfterMaxMs = 10 * 60_000;

/** Queues the backup's job in the transaction of `db`. A running job with the same key continues. */
export function queueBackup(db: Db, id: string, later: Later = {}): Promise<void> {
  const { attempt = 0, runAt } = later;
  return addJob(
    db,
    backupTask,
    { backup: id, attempt },
    { key: `backup:${id}`, ...(runAt ? { runAt } : {}) },
  );
}

export function queueRestore(db: Db, id: string, later: Later = {}): Promise<void> {
  const { attempt = 0, runAt } = later;
  return addJob(
    db,
    restoreTask,
    { restore: id, attempt },
    { key: `restore:${id}`, ...(runAt ? { runAt } : {}) },
  );
}

export interface Later {
  /** Number of attempts that failed because of this server. */
  attempt?: number;
  runAt?: Date;
}

/** Returns the backoff in milliseconds: two seconds, doubled after each attempt. */
export function retryAfterMs(attempt: number): number {
  return Math.min(1000 * 2 ** attempt, retryAfterMaxMs);
}
