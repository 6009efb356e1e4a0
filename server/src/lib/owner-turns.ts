/**
 * At most `limit` of something at once, and of one owner one. The rest wait: each owner's in the order they came, the
 * owners in turn, so that whoever asks for much keeps only themselves waiting.
 */
export class OwnerTurns {
  #free: number;
  readonly #busy = new Set<string>();
  readonly #waiting = new Map<string, (() => void)[]>();

  constructor(limit: number) {
    this.#free = limit;
  }

  /** How many of this owner's wait. */
  waiting(owner: string): number {
    return this.#waiting.get(owner)?.length ?? 0;
  }

  async run<T>(owner: string, work: () => Promise<T>): Promise<T> {
    await new Promise<void>((resolve) => {
      this.#waiting.set(owner, [...(this.#waiting.get(owner) ?? []), resolve]);
      this.#begin();
    });
    try {
      return await work();
    } finally {
      this.#busy.delete(owner);
      this.#free += 1;
      this.#begin();
    }
  }

  #begin(): void {
    for (const [owner, [first, ...rest]] of this.#waiting) {
      if (this.#free === 0) return;
      if (this.#busy.has(owner)) continue;
      this.#free -= 1;
      this.#busy.add(owner);
      // Behind all others that wait; met here again it is busy.
      this.#waiting.delete(owner);
      if (rest.length > 0) this.#waiting.set(owner, rest);
      first?.();
    }
  }
}
