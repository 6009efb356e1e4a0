/** SQL for the machines of suspended workspaces. */
import type { Db } from "#schema.ts";

export interface SuspendedRow {
  id: string;
  suspended_at: Date | null;
  held_since: Date | null;
}

/** Lists workspaces that are suspended, or whose machines are still held. */
export function findSuspended(db: Db): Promise<SuspendedRow[]> {
  return db
    .selectFrom("workspaces")
    .select(["id", "suspended_at", "held_since"])
    .where((or) => or.or([or("suspended_at", "is not", null), or("held_since", "is not", null)]))
    .execute();
}

export async function markHeld(db: Db, id: string, at: Date): Promise<void> {
  await db
    .updateTable("workspaces")
    .set({ held_since: at })
    .where("id", "=", id)
    .where("suspended_at", "is not", null)
    .where("held_since", "is", null)
    .execute();
}

/** Records that a workspace's machines are no longer held. False if another pass has recorded it. */
export async function release(tx: Db, id: string): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("workspaces")
    .set({ held_since: null })
    .where("id", "=", id)
    .where("held_since", "is not", null)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}
