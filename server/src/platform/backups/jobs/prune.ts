/** What is wanted no more goes: its bytes first, for while they are there a row says whose they are. */
import { passKillPoint } from "#lib/kill-points.ts";
import type { BackupsContext } from "../context.ts";
import { dayMs } from "../plan.ts";
import { dropOld, forgetBytes, listToRemove, markDeleted } from "../store.ts";

/** The job. */
export async function removeUnwanted({ app, blobs }: Pick<BackupsContext, "app" | "blobs">): Promise<void> {
  const { db, clock } = app;
  const now = clock.now();
  for (const { id, blob_key: key, status, expires_at } of await listToRemove(db, now)) {
    // One that failed is listed for as long as others are: it says why.
    const isListed = status === "failed" && (expires_at === null || expires_at > now);
    if (!isListed) await markDeleted(db, id, now);
    await passKillPoint("backup.unwanted");
    if (key !== null) await blobs.delete(key);
    await passKillPoint("backup.bytes-gone");
    await forgetBytes(db, id);
  }
  // Whatever the hour, the quota of the day it was made is over by then.
  await dropOld(db, new Date(now.getTime() - 2 * dayMs));
}
