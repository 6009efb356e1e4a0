/** Finds toolsets, with the names of their tools. */
import type { Db } from "#schema.ts";
import { knownTools } from "./tools/tool-lists.ts";
import { holdToolsets, toolsetById, type ToolsetRow } from "./store.ts";

/**
 * Returns toolsets with their tool names. The names are null if the server's tools are not read yet. Locks the toolsets
 * until the transaction ends, so that none is deleted while a version that uses it is published.
 */
export async function findToolsets(
  tx: Db,
  workspaceId: string,
  ids: readonly string[],
): Promise<Map<string, ReadonlySet<string> | null>> {
  if (ids.length === 0) return new Map();
  const rows = await holdToolsets(tx, workspaceId, ids);
  return new Map(
    rows.map((row) => {
      const isKnown = row.kind === "http" || row.last_refreshed_at !== null;
      return [row.id, isKnown ? new Set(knownTools(row).map(({ original }) => original)) : null];
    }),
  );
}

/** Returns a toolset of any workspace, for callers that are authorized by a link instead of a token. */
export function findById(db: Db, id: string): Promise<ToolsetRow | undefined> {
  return toolsetById(db, id);
}
