/** A timer that can be paused. Pauses may overlap: the timer continues after the last pause ends. */

/** Longest delay of a Node timer. */
const timerMaxMs = 2 ** 31 - 1;

export class PausableTimer {
  readonly #onEnd: () => void;
  #leftMs: number;
  #startedMs = 0;
  #pauses = 0;
  #isStopped = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(ms: number, onEnd: () => void) {
    this.#leftMs = Math.max(0, ms);
    this.#onEnd = onEnd;
    this.#start();
  }

  get leftMs(): number {
    const passedMs = this.#timer ? performance.now() - this.#startedMs : 0;
    return Math.max(0, this.#leftMs - passedMs);
  }

  pause(): void {
    this.#pauses += 1;
    this.#leftMs = this.leftMs;
    this.#clear();
  }

  /** Undoes one pause. */
  resume(): void {
    this.#pauses -= 1;
    if (this.#pauses === 0 && !this.#isStopped) this.#start();
  }

  /** A stopped timer never fires. */
  stop(): void {
    this.#isStopped = true;
    this.#clear();
  }

  #clear(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #start(): void {
    this.#startedMs = performance.now();
    this.#timer = setTimeout(this.#onEnd, Math.min(this.#leftMs, timerMaxMs));
  }
}
