/** Runs work on one key in order, one at a time. Different keys do not wait for each other. */
export class Turns<Key> {
  readonly #ends = new Map<Key, Promise<unknown>>();

  async take<T>(key: Key, work: () => Promise<T>): Promise<T> {
    const before = this.#ends.get(key) ?? Promise.resolve();
    const turn = before.then(work, work);
    this.#ends.set(key, turn);
    try {
      return await turn;
    } finally {
      if (this.#ends.get(key) === turn) this.#ends.delete(key);
    }
  }

  /** Resolves when no work runs or waits. */
  async settled(): Promise<void> {
    while (this.#ends.size > 0) await Promise.allSettled(this.#ends.values());
  }
}
