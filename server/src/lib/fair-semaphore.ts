/**
 * A semaphore shared between owners: at most `limit` tasks run at once, and at most `perOwner` of each owner. An
 * owner's tasks wait in the order of submission, and owners take turns, so an owner with a long queue delays only
 * itself.
 */
export interface FairSemaphoreOptions {
  limit: number;
  /** Default 1. */
  perOwner?: number;
  /** Most waiting tasks of an owner, and the error for one more. Unbounded by default. */
  queue?: { max: number; refuse: () => Error };
}

export class FairSemaphore {
  readonly #perOwner: number;
  readonly #queue: FairSemaphoreOptions["queue"];
  #free: number;
  readonly #running = new Map<string, number>();
  /** In the order of the owners' turns. */
  readonly #waiting = new Map<string, Set<() => void>>();

  constructor({ limit, perOwner = 1, queue }: FairSemaphoreOptions) {
    this.#free = limit;
    this.#perOwner = perOwner;
    this.#queue = queue;
  }

  /** Number of waiting tasks of this owner. */
  waiting(owner: string): number {
    return this.#waiting.get(owner)?.size ?? 0;
  }

  /** Rejects with the signal's reason when it aborts before the work begins. */
  async run<T>(owner: string, work: () => Promise<T>, options: { signal?: AbortSignal } = {}): Promise<T> {
    await this.#acquire(owner, options.signal);
    try {
      return await work();
    } finally {
      const running = this.#running.get(owner)! - 1;
      if (running > 0) this.#running.set(owner, running);
      else this.#running.delete(owner);
      this.#free += 1;
      this.#admit();
    }
  }

  async #acquire(owner: string, signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const queue = this.#waiting.get(owner) ?? new Set();
    this.#waiting.set(owner, queue.add(resolve));
    this.#admit();
    if (!queue.has(resolve)) return promise;
    const leave = (reason: unknown) => {
      if (queue.delete(resolve) && queue.size === 0) this.#waiting.delete(owner);
      reject(reason);
    };
    if (this.#queue && queue.size > this.#queue.max) leave(this.#queue.refuse());
    const abort = () => leave(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    try {
      await promise;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  #admit(): void {
    for (const [owner, queue] of this.#waiting) {
      if (this.#free === 0) return;
      const running = this.#running.get(owner) ?? 0;
      const [first] = queue;
      if (running >= this.#perOwner || first === undefined) continue;
      this.#free -= 1;
      this.#running.set(owner, running + 1);
      queue.delete(first);
      // The owner moves behind all other waiting owners, where this loop meets it again.
      this.#waiting.delete(owner);
      if (queue.size > 0) this.#waiting.set(owner, queue);
      first();
    }
  }
}
