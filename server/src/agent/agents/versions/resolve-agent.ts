/** Resolves the agent and version of an invoke in one query. */
import type { Actor } from "#accounts/actor.ts";
import { referableIds } from "#accounts/workspaces.ts";
import type { Db } from "#schema.ts";
import { agentNotFound } from "#agent/errors.ts";
import { parseVersion } from "../names.ts";
import { type AgentForInvoke, findAgentForInvoke } from "../store.ts";

export type { AgentForInvoke as AskedAgent } from "../store.ts";

/**
 * Returns the agent with the requested version. `version` is null if `wanted` (`3`, `v3`, an alias or `latest`) selects
 * none.
 */
export async function resolveAgent(
  db: Db,
  actor: Actor,
  reference: string,
  wanted: string,
): Promise<AgentForInvoke> {
  const row = await findAgentForInvoke(
    db,
    reference,
    referableIds(actor, reference, "agt_"),
    parseVersion(wanted),
  );
  if (!row) throw agentNotFound();
  return row;
}
