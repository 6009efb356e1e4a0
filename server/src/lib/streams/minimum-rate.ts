/**
 * A minimum rate at which a peer must move bytes. Only the time spent waiting for the peer counts, not our own work in
 * between.
 */

/** The peer moved fewer bytes than the minimum. */
export class TooSlow extends Error {
  override readonly name = "TooSlow";
}

export class MinimumRate {
  readonly #windowMs: number;
  readonly #bytesPerWindow: number;
  #waitedMs = 0;
  #bytes = 0;

  /** `bytesPerSecond` is averaged over each `windowMs` of waiting. */
  constructor({ bytesPerSecond, windowMs }: { bytesPerSecond: number; windowMs: number }) {
    this.#windowMs = windowMs;
    this.#bytesPerWindow = (bytesPerSecond * windowMs) / 1000;
  }

  /** Awaits `move`; `bytesOf` returns the number of bytes it moved. Rejects with `TooSlow` below the minimum. */
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
