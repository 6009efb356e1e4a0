/** The background work of this folder, by the names, keys and queues it is queued under. */
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";

/** Payload: `{ backup }`. */
export const backupTask = "platform.backups.run";
/** Payload: `{ restore }`. */
export const restoreTask = "platform.backups.restore";
/** What is due is begun, what is wanted no more goes; once a minute. */
export const tickTask = "platform.backups.tick";
export const sweepTask = "platform.backups.sweep";

/** Longest backoff after a failure of this server. */
const retryAfterMaxMs = 10 * 60_000;

/** In the transaction that `db` is; the job goes on with one that is under way. */
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

/** Returns the backoff: two seconds, doubled after each attempt. */
export function retryAfterMs(attempt: number): number {
  return Math.min(1000 * 2 ** attempt, retryAfterMaxMs);
}
