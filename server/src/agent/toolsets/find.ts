/** Which toolsets are there, and the names of their tools. */
import type { Db } from "#schema.ts";
import { knownTools } from "./tools/tool-lists.ts";
import { holdToolsets, toolsetById, type ToolsetRow } from "./store.ts";

/**
 * Null names: of a server that was not read yet. Until the transaction ends none of them is deleted: a version that is
 * published with one and the toolset's end do not pass each other.
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

/** Whosever it is: for who shows something else than a token. */
export function findById(db: Db, id: string): Promise<ToolsetRow | undefined> {
  return toolsetById(db, id);
}
