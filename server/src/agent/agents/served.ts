/** Which agents have an alias that points at a version of some kind. */
import type { Db } from "#db/db.ts";
import type { AgentConfig } from "./config.ts";
import { servedConfigs } from "./store.ts";

/** Their names. */
export async function servedBy(
  db: Db,
  workspaceId: string,
  isMeant: (config: AgentConfig) => boolean,
): Promise<string[]> {
  const rows = await servedConfigs(db, workspaceId);
  return [...new Set(rows.filter(({ config }) => isMeant(config as AgentConfig)).map(({ name }) => name))];
}
