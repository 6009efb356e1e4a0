/** Locks of runs for the end of their sessions. Runs are locked before sessions, in the order of a step's statement. */
import type { Db, Transaction } from "#schema.ts";
import { findOfSessions, lockActive, lockExisting } from "../store.ts";

/** Thrown if a run started after the active runs were locked. The transaction is retried. */
export class Overtaken extends Error {}

const triesMax = 5;

/** Runs a transaction, and retries it after a deadlock or an overtaking run. */
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

/** Active runs of the sessions, locked until the transaction ends. */
export function holdActive(tx: Db, agentId: string, sessionIds: readonly string[]): Promise<string[]> {
  return lockActive(tx, agentId, sessionIds);
}

export function runsIn(db: Db, sessionIds: readonly string[]): Promise<string[]> {
  return findOfSessions(db, sessionIds);
}

/** Existing runs among these, locked against deletion until the transaction ends. */
export function holdExistingRuns(tx: Db, runIds: readonly string[]): Promise<string[]> {
  return lockExisting(tx, runIds);
}
