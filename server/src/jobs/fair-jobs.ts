/**
 * Runs long jobs in the order of `FairQueue`: their owners take turns. A job that has to wait returns at once and frees
 * its worker for jobs of other kinds. A worker whose job ends runs the next waiting job. The order is kept in memory
 * only, so each waiting job is also added to the job table for later (`defer`). If this process dies, the job runs from
 * the table.
 */
import { FairQueue, type FairQueueOptions } from "#lib/concurrency/fair-queue.ts";

export interface FairJob {
  owner: string;
  id: string;
  /** Runs in any job's worker, so it handles its own errors. */
  work: (signal: AbortSignal) => Promise<void>;
  /** Adds the job for later. */
  defer: () => Promise<void>;
}

export class FairJobs {
  readonly #queue: FairQueue<FairJob>;
  readonly #waiting = new Set<string>();

  constructor(options: FairQueueOptions) {
    this.#queue = new FairQueue(options);
  }

  /** True if a job of any owner waits. */
  get hasWaiting(): boolean {
    return this.#waiting.size > 0;
  }

  /**
   * Runs the job when its turn comes, then the waiting jobs until none may start. Jobs with the same id run one after
   * the other, and at most one of them waits.
   */
  async run(job: FairJob, signal: AbortSignal): Promise<void> {
    const isNew = !this.#waiting.has(job.id);
    if (isNew) {
      this.#waiting.add(job.id);
      this.#queue.add(job.owner, job, job.id);
    }
    let turn = this.#queue.next();
    const errors: unknown[] = [];
    try {
      if (turn?.item.id !== job.id) await job.defer();
    } catch (error) {
      errors.push(error);
    }
    while (turn) {
      const { id, work } = turn.item;
      this.#waiting.delete(id);
      try {
        await work(signal);
      } catch (error) {
        // The waiting jobs need this worker, so an error does not end it.
        errors.push(error);
      } finally {
        turn.end();
      }
      turn = signal.aborted ? undefined : this.#queue.next();
    }
    if (errors.length > 0) throw errors[0];
  }
}
