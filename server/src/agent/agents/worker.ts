/** An agent as an actor in the account. */
import type { Worker } from "#accounts/worker-actor.ts";
import type { Db } from "#schema.ts";
import { workerOf } from "./store.ts";

/** Returns the agent as an actor, or undefined if the agent was deleted. */
export async function findWorker(db: Db, agentId: string): Promise<Worker | undefined> {
  const row = await workerOf(db, agentId);
  return row && { workspaceId: row.workspace_id, workerId: row.worker_id, label: row.name };
}
