/** The sandboxes of a workspace at a glance: those that live, newest first, with nothing of what is in them. */
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

/** For who keeps sandboxes: those of them that there is a record of. */
export async function statesOf(db: Db, ids: readonly string[]): Promise<Map<string, SandboxState>> {
  const rows = ids.length === 0 ? [] : await findStates(db, ids);
  return new Map(rows.map((row) => [row.id, row]));
}
