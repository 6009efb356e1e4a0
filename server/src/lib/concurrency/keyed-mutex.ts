/** Runs work of the same key one after the other, in the order of arrival. Work of different keys runs concurrently. */
export class KeyedMutex {
  readonly #last = new Map<string, Promise<unknown>>();

  run<T>(key: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(key) ?? Promise.resolve();
    const run = before.then(work, work);
    const forget = () => {
      if (this.#last.get(key) === run) this.#last.delete(key);
    };
    this.#last.set(key, run);
    run.then(forget, forget);
    return run;
  }
}
