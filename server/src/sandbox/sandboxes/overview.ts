/** The sandboxes of a workspace at a glance: those that live, newest first, with nothing of what is in them. */
import type { Db } from "#db/db.ts";
import { countLiveRows, listLiveRows } from "./store.ts";

export async function liveSandboxes(db: Db, workspaceId: string, limit: number) {
  const [items, total] = await Promise.all([
    listLiveRows(db, workspaceId, limit),
    countLiveRows(db, workspaceId),
  ]);
  return { items, total };
}
