/** Runs as whoever ends their sessions finds them: held before the sessions are, as a step that is written holds them. */
import type { Db, Transaction } from "#schema.ts";
import { findOfSessions, lockActive, lockExisting } from "../store.ts";

/** A run began in a session between two looks: those that are held are not all. */
export class Overtaken extends Error {}

const triesMax = 5;

/** One transaction; once more where others were in its way: a deadlock ends one of the two. */
export async function whole<T>(db: Db, work: (tx: Transaction) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await db.transaction().execute(work);
    } catch (error) {
      const isInTheWay = error instanceof Overtaken || (error as { code?: string }).code === "40P01";
      if (!isInTheWay || tries === triesMax) throw error;
    }
  }
}

/** Those that are under way; nobody writes to them until this transaction ends. */
export function holdActive(tx: Db, agentId: string, sessionIds: readonly string[]): Promise<string[]> {
  return lockActive(tx, agentId, sessionIds);
}

export function runsIn(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  return findOfSessions(db, sessionIds);
}

/** Runs among these that still exist. No transaction deletes them until this one ends. */
export function holdExistingRuns(tx: Db, runIds: readonly string[]): Promise<string[]> {
  return lockExisting(tx, runIds);
}
