/** Queries about runs for other folders: the active run of a session, and the newest run of an agent. */
import type { Db } from "#schema.ts";
import { findActive, lastRuns, type RunRow } from "../store.ts";

export async function activeRuns(db: Db, sessionIds: readonly string[]): Promise<Map<string, string>> {
  const rows = await findActive(db, sessionIds);
  // For equal keys, a map keeps the last entry. So `reverse` keeps the first active run of each session: see
  // `findActive`.
  return new Map(rows.reverse().map(({ session_id, id }) => [session_id, id]));
}

/** Returns the ids of all active runs, waiting runs included. */
export async function allActive(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  return (await findActive(db, sessionIds)).map(({ id }) => id);
}

export type NewestRun = Pick<RunRow, "id" | "agent_id" | "status" | "created_at" | "finished_at">;

export async function newestRuns(db: Db, agentIds: readonly string[]): Promise<Map<string, NewestRun>> {
  const rows = await lastRuns(db, agentIds);
  return new Map(rows.map((row) => [row.agent_id, row]));
}
