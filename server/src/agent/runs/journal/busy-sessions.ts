/** What others ask of runs: which one keeps a session busy, and which one is an agent's newest. Kept nowhere else. */
import type { Db } from "#schema.ts";
import { findActive, findActiveOfAgent, lastRuns, type RunRow } from "../store.ts";

export async function activeRuns(db: Db, sessionIds: readonly string[]): Promise<Map<string, string>> {
  const rows = await findActive(db, sessionIds);
  // The first active run of a session is kept: see `findActive`.
  return new Map(rows.reverse().map(({ session_id, id }) => [session_id, id]));
}

/** Ids of all active runs, including the waiting ones. */
export async function allActive(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  return (await findActive(db, sessionIds)).map(({ id }) => id);
}

export type NewestRun = Pick<RunRow, "id" | "agent_id" | "status" | "created_at" | "finished_at">;

export async function newestRuns(db: Db, agentIds: readonly string[]): Promise<Map<string, NewestRun>> {
  const rows = await lastRuns(db, agentIds);
  return new Map(rows.map((row) => [row.agent_id, row]));
}

/** Lists ids of an agent's active runs, at most `limit`. */
export function activeOfAgent(db: Db, agentId: string, limit: number): Promise<string[]> {
  return findActiveOfAgent(db, agentId, limit);
}
