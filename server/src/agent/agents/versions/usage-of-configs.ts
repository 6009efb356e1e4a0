/** Finds the agents with an alias whose config fulfils a condition, and the toolsets that an agent's versions use. */
import type { Db } from "#schema.ts";
import type { AgentConfig } from "../config.ts";
import { namedToolsets, servedConfigs } from "../store.ts";

/** Returns the names of the agents with an alias whose config fulfils `isMeant`. */
export async function findServingAgents(
  db: Db,
  workspaceId: string,
  isMeant: (config: AgentConfig) => boolean,
): Promise<string[]> {
  const rows = await servedConfigs(db, workspaceId);
  return [...new Set(rows.filter(({ config }) => isMeant(config as AgentConfig)).map(({ name }) => name))];
}

/** Returns the ids of the toolsets that an agent's versions use. Some of these toolsets may be deleted. */
export function toolsetsUsed(db: Db, agentId: string): Promise<string[]> {
  return namedToolsets(db, agentId);
}
