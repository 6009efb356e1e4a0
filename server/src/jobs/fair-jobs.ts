/**
 * Long jobs that begin in turns of their owners (`FairQueue`). A job that has to wait returns at once, so that it holds
 * no worker from jobs of other kinds; the worker whose job ends goes on with the next in turn. The order is in memory.
 * A job that waits, or that another job's worker carries out, is therefore added once more for later (`defer`), and
 * comes again after the end of this process.
 */
import { FairQueue, type FairQueueOptions } from "#lib/fair-queue.ts";

export interface FairJob {
  owner: string;
  id: string;
  /** It may run in the worker of another job, so it handles its own errors. */
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

  /** Whether a job of any owner waits. */
  get hasWaiting(): boolean {
    return this.#waiting.size > 0;
  }

  /**
   * Carries the job out once it is its turn, and then those that wait, until none may begin. Jobs of one id run one after
   * the other, and at most one of them waits.
   */
  async run(job: FairJob, signal: AbortSignal): Promise<void> {
    if (this.#waiting.has(job.id)) return job.defer();
    this.#waiting.add(job.id);
    this.#queue.add(job.owner, job, job.id);
    let turn = this.#queue.next();
    if (!turn) return job.defer();
    while (turn) {
      const { id, work } = turn.item;
      this.#waiting.delete(id);
      try {
        await work(signal);
      } finally {
        turn.end();
      }
      turn = signal.aborted ? undefined : this.#queue.next();
    }
  }
}
