/**
 * What an agent remembers: facts, each a key and a value, of one agent and one end user. Agents save them by tools
 * while they run, and are told them at each step; their owner reads and forgets them. This folder promises that a fact
 * is saved in the transaction that tells of it, or not at all where the run is over; that nobody is told of another's;
 * and that all of one person's fit into one answer.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { getAgent, target } from "../agents/agents.ts";
import { hashOfEndUser } from "../end-users/id.ts";
import { type Forgotten, type Memory, toMemory } from "./schema.ts";
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

/** One fact, or all of them. What is not there is no error. */
export async function forget(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  reference: string,
  endUserId: string,
  key?: string,
): Promise<Forgotten> {
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

/** How many there were. */
export function forgetFacts(tx: Db, agentId: string, endUserId: string, key?: string): Promise<number> {
  return deleteFacts(tx, { agentId, endUserId }, key);
}
