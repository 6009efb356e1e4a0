/** Runs as an erasure finds them; they go with their sessions. */
import type { Db } from "#db/db.ts";
import { findOfSessions, lockActive } from "./store.ts";

/** Those that are under way; nobody writes to them until this transaction ends. */
export function holdActive(tx: Db, sessionIds: readonly string[]): Promise<string[]> {
  return lockActive(tx, sessionIds);
}

export function runsIn(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  return findOfSessions(db, sessionIds);
}
