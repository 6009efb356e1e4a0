/** Locks of runs for the end of their sessions. Runs are locked before sessions, in the order of a step's statement. */
import type { Db, Transaction } from "#schema.ts";

/** Thrown if a run started after the active runs were locked. The transaction is retried. */
export class RunStartedMeanwhile extends Error {}

const triesMax = 5;

/** Runs a transaction, and retries it after a deadlock or an overtaking run. */
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
