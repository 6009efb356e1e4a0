/**
 * Runs at most `limit` tasks at once. Other tasks wait in the order of their arrival. Speculative work waits until no
 * other task waits.
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
      // A waiter takes over the slot directly, so that no later task overtakes it.
      const next = this.#waiting.shift() ?? this.#ahead.shift();
      if (next) next();
      else this.#free += 1;
    }
  }
}
