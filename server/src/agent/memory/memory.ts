/**
 * An agent's memory: facts (key and value) for one agent and one end user. Agents save facts with tools and receive the
 * facts at each step; the agent's owner reads and deletes facts. A save commits together with its event, and only while
 * the run is active. An agent gets only facts of its own end user. All facts of one end user fit into one response.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { getAgent, target } from "../agents/agents.ts";
import { hashOfEndUser } from "../end-users/id.ts";
import { type DeletedFacts, type Memory, toMemory } from "./schema.ts";
import { deleteFacts, listFacts } from "./store.ts";

export async function read(
  app: Pick<App, "db">,
  actor: Actor,
  reference: string,
  endUserId: string,
): Promise<Memory> {
  const agent = await getAgent(app.db, actor, reference);
  return toMemory(endUserId, await listFacts(app.db, { agentId: agent.id, endUserId }));
}

/** Deletes one fact, or all facts. A missing fact is not an error. */
export async function forget(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  reference: string,
  endUserId: string,
  key?: string,
): Promise<DeletedFacts> {
  const agent = await getAgent(app.db, actor, reference);
  return app.db.transaction().execute(async (tx) => {
    const deleted = await forgetFacts(tx, agent.id, endUserId, key);
    if (deleted > 0) {
      const detail = { deleted, end_user_hash: hashOfEndUser(app, agent.id, endUserId) };
      await recordActivity(tx, actor, "agent.memory_forgotten", target(agent), agent.workspace_id, detail);
    }
    return { deleted };
  });
}

/** Deletes facts, and returns their number. */
export function forgetFacts(tx: Db, agentId: string, endUserId: string, key?: string): Promise<number> {
  return deleteFacts(tx, { agentId, endUserId }, key);
}
