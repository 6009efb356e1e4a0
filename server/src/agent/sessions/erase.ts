/** Sessions of an end user, for an erasure: they are deleted whole, with their runs. */
import type { Db } from "#schema.ts";
import { deleteSessions, findOfEndUser, lockSessions } from "./store.ts";

/** Ids of all sessions, ended ones included. */
export function sessionsOf(db: Db, agentId: string, endUserId: string): Promise<string[]> {
  return findOfEndUser(db, agentId, endUserId);
}

/** Locks the sessions, so that no run starts in them until the transaction ends. */
export function holdSessions(tx: Db, ids: readonly string[]): Promise<void> {
  return lockSessions(tx, ids);
}

export function eraseSessions(tx: Db, ids: readonly string[]): Promise<void> {
  return deleteSessions(tx, ids);
}
