/** Section of a workspace's snapshot about its agents. */
import type { Db } from "#schema.ts";
import { newestRuns } from "../runs/journal/active-runs.ts";
import { countAgents, listAgents } from "./store.ts";

/** Returns the agents that can act in the workspace, newest first. */
export async function workers(db: Db, workspaceId: string, limit: number) {
  const [shown, total] = await Promise.all([
    listAgents(db, [workspaceId], { archived: false, limit }),
    countAgents(db, workspaceId),
  ]);
  const runs = await newestRuns(
    db,
    shown.map(({ id }) => id),
  );
  const items = shown.map(({ id, name, worker_id, paused }) => {
    const run = runs.get(id);
    const isWorking = run !== undefined && run.finished_at === null;
    return {
      id,
      name,
      worker_id,
      status: paused ? "paused" : isWorking ? "running" : "idle",
      last_run: run
        ? {
            run_id: run.id,
            status: run.status as string,
            created_at: run.created_at,
            finished_at: run.finished_at,
          }
        : null,
    };
  });
  return { items, total };
}
