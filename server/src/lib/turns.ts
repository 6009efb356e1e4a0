/** Work on one thing is done one piece after the other, in the order it came; work on different things is not held up. */
export class Turns {
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
