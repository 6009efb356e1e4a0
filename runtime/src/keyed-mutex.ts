/** Runs work on one key in order, one at a time. Different keys do not wait for each other. */
export class KeyedMutex<Key> {
  readonly #ends = new Map<Key, Promise<unknown>>();

  async run<T>(key: Key, work: () => Promise<T>): Promise<T> {
    const before = this.#ends.get(key) ?? Promise.resolve();
    const done = before.then(work, work);
    this.#ends.set(key, done);
    try {
      return await done;
    } finally {
      if (this.#ends.get(key) === done) this.#ends.delete(key);
    }
  }

  /** Resolves when no work runs or waits. */
  async waitUntilIdle(): Promise<void> {
    while (this.#ends.size > 0) await Promise.allSettled(this.#ends.values());
  }
}
