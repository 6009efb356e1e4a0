/**
 * What a workspace still holds. Accounts knows nothing of sandboxes or projects: main hands it, for every kind of
 * thing that is kept in a workspace, how to count them. A team is deleted only when all of them are gone.
 */
import type { Db } from "#db/db.ts";

export interface Holding {
  /** In the plural, as a person reads it: "sandboxes". */
  noun: string;
  /** How many living ones the workspace has. */
  count: (db: Db, workspaceId: string) => Promise<number>;
}

/** What is left, as "2 sandboxes"; empty where nothing is. */
export async function leftInWorkspace(
  db: Db,
  holdings: readonly Holding[],
  workspaceId: string,
): Promise<string[]> {
  const left: string[] = [];
  for (const { noun, count } of holdings) {
    const number = await count(db, workspaceId);
    if (number > 0) left.push(`${number} ${noun}`);
  }
  return left;
}
