/** Sessions of one end user, as an erasure takes them: whole, with their runs and all that is of those. */
import type { Db } from "#schema.ts";
import { deleteSessions, findOfEndUser, lockSessions } from "./store.ts";

/** Their ids, of those that have ended as well. */
export function sessionsOf(db: Db, agentId: string, endUserId: string): Promise<string[]> {
  return findOfEndUser(db, agentId, endUserId);
}

/** No run begins in them until this transaction ends. */
export function holdSessions(tx: Db, ids: readonly string[]): Promise<void> {
  return lockSessions(tx, ids);
}

export function eraseSessions(tx: Db, ids: readonly string[]): Promise<void> {
  return deleteSessions(tx, ids);
}
