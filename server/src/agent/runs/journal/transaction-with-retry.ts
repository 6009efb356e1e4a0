/** Locks of runs for the end of their sessions. Runs are locked before sessions, as in a step's statement. */
import type { Db, Transaction } from "#schema.ts";

/** Thrown if a run started after the active runs were locked. The caller's transaction is then retried. */
export class RunStartedMeanwhile extends Error {}

const triesMax = 5;

/** Runs a transaction. Retries it after a deadlock, or if a run started meanwhile. */
export async function transactionWithRetry<T>(db: Db, work: (tx: Transaction) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await db.transaction().execute(work);
    } catch (error) {
      const isInTheWay =
        error instanceof RunStartedMeanwhile || (error as { code?: string }).code === "40P01";
      if (!isInTheWay || tries === triesMax) throw error;
    }
  }
}
