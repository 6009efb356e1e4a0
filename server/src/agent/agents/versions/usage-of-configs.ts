/** What versions use: which agents have an alias that points at one of some kind, and which toolsets there are in them. */
import type { Db } from "#schema.ts";
import type { AgentConfig } from "../config.ts";
import { namedToolsets, servedConfigs } from "../store.ts";

/** Their names. */
export async function servedBy(
  db: Db,
  workspaceId: string,
  isMeant: (config: AgentConfig) => boolean,
): Promise<string[]> {
  const rows = await servedConfigs(db, workspaceId);
  return [...new Set(rows.filter(({ config }) => isMeant(config as AgentConfig)).map(({ name }) => name))];
}

/** Ids of the toolsets that any of an agent's versions uses; some may be gone. */
export function toolsetsUsed(db: Db, agentId: string): Promise<string[]> {
  return namedToolsets(db, agentId);
}
