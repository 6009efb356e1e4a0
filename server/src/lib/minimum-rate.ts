/**
 * A floor for how fast the other end of a connection must move bytes. Only time spent waiting for it counts, so work of
 * ours in between costs it nothing.
 */

/** The other end moved fewer bytes than the floor allows. */
export class TooSlow extends Error {
  override readonly name = "TooSlow";
}

export class MinimumRate {
  readonly #windowMs: number;
  readonly #bytesPerWindow: number;
  #waitedMs = 0;
  #bytes = 0;

  /** `bytesPerSecond`, averaged over each `windowMs` of waiting. */
  constructor({ bytesPerSecond, windowMs }: { bytesPerSecond: number; windowMs: number }) {
    this.#windowMs = windowMs;
    this.#bytesPerWindow = (bytesPerSecond * windowMs) / 1000;
  }

  /** Waits for `move`, which moves as many bytes as `bytesOf` returns; rejects with `TooSlow` below the floor. */
  async wait<T>(move: Promise<T>, bytesOf: (moved: T) => number): Promise<T> {
    const { promise: tooSlow, reject } = Promise.withResolvers<never>();
    let began = performance.now();
    const endWindow = () => {
      if (this.#bytes < this.#bytesPerWindow) return reject(new TooSlow());
      this.#bytes = 0;
      this.#waitedMs = 0;
      began = performance.now();
      timer = setTimeout(endWindow, this.#windowMs);
    };
    let timer = setTimeout(endWindow, Math.max(0, this.#windowMs - this.#waitedMs));
    try {
      const moved = await Promise.race([move, tooSlow]);
      this.#bytes += bytesOf(moved);
      return moved;
    } finally {
      clearTimeout(timer);
      this.#waitedMs += performance.now() - began;
    }
  }
}
