/** Prunes expired and deleted backups. The bytes go first: the row names their place until they are gone. */
import { passKillPoint } from "#lib/kill-points.ts";
import type { BackupsContext } from "../context.ts";
import { dayMs } from "../plan.ts";
import { deleteOldRows, clearBlobKey, listToRemove, markDeleted } from "../store.ts";

/** The pruning job. */
export async function pruneBackups({ app, blobs }: Pick<BackupsContext, "app" | "blobs">): Promise<void> {
  const { db, clock } = app;
  const now = clock.now();
  for (const { id, blob_key: key, status, expires_at } of await listToRemove(db, now)) {
    // A failed backup is listed as long as others, for its error text.
    const isListed = status === "failed" && (expires_at === null || expires_at > now);
    if (!isListed) await markDeleted(db, id, now);
    await passKillPoint("backup.unwanted");
    if (key !== null) await blobs.delete(key);
    await passKillPoint("backup.bytes-gone");
    await clearBlobKey(db, id);
  }
  // By then, no time zone's daily quota counts the row any more.
  await deleteOldRows(db, new Date(now.getTime() - 2 * dayMs));
}
