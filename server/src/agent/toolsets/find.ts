/** Which toolsets are there, and the names of their tools. */
import type { Db } from "#db/db.ts";
import { toolsetById, toolsetsByIds, type ToolsetRow } from "./store.ts";

export async function findToolsets(
  db: Db,
  workspaceId: string,
  ids: readonly string[],
): Promise<Map<string, ReadonlySet<string>>> {
  if (ids.length === 0) return new Map();
  const rows = await toolsetsByIds(db, workspaceId, ids);
  return new Map(rows.map(({ id, http_tools }) => [id, new Set(http_tools.map(({ name }) => name))]));
}

/** Whosever it is: for who shows something else than a token. */
export function findById(db: Db, id: string): Promise<ToolsetRow | undefined> {
  return toolsetById(db, id);
}
