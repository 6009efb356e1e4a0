/** Limits concurrent requests: for each name, so that no name takes another's share, and in total. */
export class ConcurrencyLimit {
  readonly #each: number;
  readonly #all: number;
  readonly #underWay = new Map<string, number>();
  #inAll = 0;

  constructor(bounds: { each: number; all: number }) {
    this.#each = bounds.each;
    this.#all = bounds.all;
  }

  /** Returns false above a limit. Otherwise counts the request until `leave`. */
  acquire(name: string): boolean {
    const underWay = this.#underWay.get(name) ?? 0;
    if (underWay >= this.#each || this.#inAll >= this.#all) return false;
    this.#underWay.set(name, underWay + 1);
    this.#inAll += 1;
    return true;
  }

  release(name: string): void {
    this.#inAll -= 1;
    const left = this.#underWay.get(name)! - 1;
    if (left === 0) this.#underWay.delete(name);
    else this.#underWay.set(name, left);
  }
}
