/** What a workspace's snapshot shows of this room. */
import type { Db } from "#db/db.ts";
import { listAgents } from "./store.ts";

/** Agents as who acts for the workspace, newest first. */
export async function workers(db: Db, workspaceId: string, limit: number) {
  const rows = await listAgents(db, [workspaceId]);
  const items = rows.slice(0, limit).map(({ id, name, worker_id, paused }) => ({
    id,
    name,
    worker_id,
    status: paused ? "paused" : "idle",
    last_run: null,
  }));
  return { items, total: rows.length };
}
