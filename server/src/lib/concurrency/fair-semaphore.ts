/**
 * A semaphore shared between owners: at most `limit` tasks run at once, and at most `perOwner` of each owner. Tasks
 * begin in the order of `FairQueue`, so an owner with a long queue delays only itself.
 */
import { FairQueue } from "./fair-queue.ts";

export interface FairSemaphoreOptions {
  limit: number;
  /** Maximum of concurrent tasks of one owner. Default: 1. */
  perOwner?: number;
  /** An owner leaves one place free while another owner's work runs, or ended within the last hour. */
  leavesOne?: boolean;
  /** Maximum of waiting tasks of one owner, and the error for a task beyond it. Unbounded by default. */
  queue?: { max: number; refuse: () => Error };
}

export interface FairTaskOptions {
  signal?: AbortSignal;
  /** Tasks of the same key run one after the other. */
  key?: string;
  /** Called once if the task has to wait. */
  onWait?: () => void;
}

export class FairSemaphore {
  readonly #queue: FairQueue<(end: () => void) => void>;
  readonly #bound: FairSemaphoreOptions["queue"];

  constructor({ limit, perOwner = 1, leavesOne = false, queue }: FairSemaphoreOptions) {
    this.#queue = new FairQueue({ limit, perOwner, keepsOneFree: leavesOne });
    this.#bound = queue;
  }

  /** Number of waiting tasks of this owner. */
  waiting(owner: string): number {
    return this.#queue.waiting(owner);
  }

  /**
   * Runs `work` as soon as a slot is free, and returns its result. Rejects with the signal's reason if the signal
   * aborts before the work begins.
   */
  async run<T>(owner: string, work: () => Promise<T>, options: FairTaskOptions = {}): Promise<T> {
    const end = await this.#acquire(owner, options);
    try {
      return await work();
    } finally {
      end();
      this.#admit();
    }
  }

  async #acquire(owner: string, { signal, key, onWait }: FairTaskOptions): Promise<() => void> {
    signal?.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<() => void>();
    let isWaiting = true;
    const begin = (end: () => void) => {
      isWaiting = false;
      resolve(end);
    };
    const remove = this.#queue.add(owner, begin, key);
    this.#admit();
    if (!isWaiting) return promise;
    const leave = (reason: unknown) => {
      if (remove()) reject(reason);
    };
    if (this.#bound && this.#queue.waiting(owner) > this.#bound.max) leave(this.#bound.refuse());
    else onWait?.();
    const abort = () => leave(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    try {
      return await promise;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  #admit(): void {
    for (let turn = this.#queue.next(); turn; turn = this.#queue.next()) turn.item(turn.end);
  }
}
