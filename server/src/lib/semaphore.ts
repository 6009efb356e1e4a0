/**
 * At most `limit` of something at once. The rest wait in the order they came, and work that is done ahead of need
 * waits until nobody else does.
 */
export class Semaphore {
  #free: number;
  readonly #waiting: (() => void)[] = [];
  readonly #ahead: (() => void)[] = [];

  constructor(limit: number) {
    this.#free = limit;
  }

  async run<T>(work: () => Promise<T>, options: { isAhead?: boolean } = {}): Promise<T> {
    const queue = options.isAhead ? this.#ahead : this.#waiting;
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => queue.push(resolve));
    try {
      return await work();
    } finally {
      // A waiter takes over the place directly, so that nobody who came later slips in between.
      const next = this.#waiting.shift() ?? this.#ahead.shift();
      if (next) next();
      else this.#free += 1;
    }
  }
}
