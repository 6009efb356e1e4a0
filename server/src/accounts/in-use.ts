/**
 * What a workspace still holds. Accounts knows nothing of sandboxes or projects, so whoever keeps things in a
 * workspace says here how to count them; a team is deleted only when all of them are gone.
 */
import type { Db } from "#db/db.ts";

/** Counts the living things of one kind in a workspace. */
export type CountInWorkspace = (db: Db, workspaceId: string) => Promise<number>;

const counters = new Map<string, CountInWorkspace>();

/** `noun` in the plural, as a person reads it: "sandboxes". */
export function countsInWorkspaces(noun: string, count: CountInWorkspace): void {
  counters.set(noun, count);
}

/** What is left, as "2 sandboxes"; empty where nothing is. */
export async function leftInWorkspace(db: Db, workspaceId: string): Promise<string[]> {
  const left: string[] = [];
  for (const [noun, count] of counters) {
    const number = await count(db, workspaceId);
    if (number > 0) left.push(`${number} ${noun}`);
  }
  return left;
}
