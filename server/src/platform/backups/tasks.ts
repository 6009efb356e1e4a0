/** The background work of this folder, by the names, keys and queues it is queued under. */
import type { Db } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";

/** Payload: `{ backup }`. */
export const backupTask = "platform.backups.run";
/** Payload: `{ restore }`. */
export const restoreTask = "platform.backups.restore";
/** What is due is begun, what is wanted no more goes; once a minute. */
export const tickTask = "platform.backups.tick";
export const sweepTask = "platform.backups.sweep";

/** Each has a second instance of its database for a while, and reads and writes as fast as it can. */
const atOnce = 2;

/** In the transaction that `db` is; the job goes on with one that is under way. */
export function queueBackup(db: Db, id: string): Promise<void> {
  return addJob(db, backupTask, { backup: id }, { key: `backup:${id}`, queue: queueOf(id) });
}

export function queueRestore(db: Db, id: string): Promise<void> {
  return addJob(db, restoreTask, { restore: id }, { key: `restore:${id}`, queue: queueOf(id) });
}

/** One that waits for its turn takes no worker from others' jobs. */
function queueOf(id: string): string {
  return `backups:${Number.parseInt(id.slice(-1), 16) % atOnce}`;
}
