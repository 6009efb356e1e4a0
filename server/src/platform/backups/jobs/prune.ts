/** Prunes expired and deleted backups. The bytes are deleted before the row, because the row names their key. */
import { passKillPoint } from "#lib/kill-points.ts";
import type { BackupsContext } from "../context.ts";
import { dayMs } from "../plan.ts";
import { deleteOldRows, clearBlobKey, listToRemove, markDeleted } from "../store.ts";

/** Runs the pruning job. */
export async function pruneBackups({ app, blobs }: Pick<BackupsContext, "app" | "blobs">): Promise<void> {
  const { db, clock } = app;
  const now = clock.now();
  for (const { id, blob_key: key, status, expires_at } of await listToRemove(db, now)) {
    // A failed backup stays listed as long as others, because its error text is shown.
    const isListed = status === "failed" && (expires_at === null || expires_at > now);
    if (!isListed) await markDeleted(db, id, now);
    await passKillPoint("backup.unwanted");
    if (key !== null) await blobs.delete(key);
    await passKillPoint("backup.bytes-gone");
    await clearBlobKey(db, id);
  }
  // After two days, the row counts for no daily quota in any time zone.
  await deleteOldRows(db, new Date(now.getTime() - 2 * dayMs));
}
