/** Overview of a workspace's live sandboxes, newest first, without their content. */
import type { Db } from "#schema.ts";
import { countLiveRows, findStates, listLiveRows } from "./store.ts";

export async function liveSandboxes(db: Db, workspaceId: string, limit: number) {
  const [items, total] = await Promise.all([
    listLiveRows(db, workspaceId, limit),
    countLiveRows(db, workspaceId),
  ]);
  return { items, total };
}

export type SandboxState = Awaited<ReturnType<typeof findStates>>[number];

/** Returns the states of the given sandboxes, for the owner of their records. Sandboxes without a row are left out. */
export async function statesOf(db: Db, ids: readonly string[]): Promise<Map<string, SandboxState>> {
  const rows = ids.length === 0 ? [] : await findStates(db, ids);
  return new Map(rows.map((row) => [row.id, row]));
}
