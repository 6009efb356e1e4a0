/** A seeded random generator (mulberry32). */
export class Random {
  #state: number;

  /** Makes a generator. `text` makes the sequence of an operation independent of the operations before it. */
  constructor(seed: number, text: string) {
    this.#state = seed >>> 0;
    for (const character of text)
      this.#state = Math.imul(this.#state ^ character.codePointAt(0)!, 0x01000193);
  }

  /** Returns a number from 0 to below 1. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Returns `count` of the items, each at most once, in random order. */
  sample<T>(items: readonly T[], count: number): T[] {
    const left = [...items];
    const taken: T[] = [];
    while (taken.length < count && left.length > 0)
      taken.push(...left.splice(Math.floor(this.next() * left.length), 1));
    return taken;
  }
}
