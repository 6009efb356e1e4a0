/** This folder's background jobs, with their task names, keys and queues. */
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";

/** Payload: `{ backup }`. */
export const backupTask = "platform.backups.run";
/** Payload: `{ restore }`. */
export const restoreTask = "platform.backups.restore";
/** Runs once a minute: starts due backups and prunes old ones. */
export const tickTask = "platform.backups.tick";
export const sweepTask = "platform.backups.sweep";

/** Longest backoff after a failure of this server. */
const retryAfterMaxMs = 10 * 60_000;

/** Queues the job in the transaction of `db`. A running job with the same key continues. */
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
