/**
 * A deadline that counts from the last sign of progress, with a total limit. Slow work on a busy host continues;
 * stalled work ends early.
 */

export interface DeadlineOptions {
  /** Longest time without progress. */
  quietMs: number;
  /** Longest total time. */
  wholeMs: number;
  /** True if there was progress since the last call. A rejection ends the wait with its error. */
  hasProgressed?: () => Promise<boolean>;
}

/** Interval between calls of `hasProgressed`. */
const pollMs = 1_000;
/** Minimum time that `hasProgressed` gets for a response. A missing response counts as no progress. */
const lookMs = 5_000;

/** Reason with which the deadline's signal aborts. */
export class DeadlineOver extends Error {
  constructor() {
    super("the deadline is over");
  }
}

export class ProgressDeadline implements Disposable {
  readonly #options: DeadlineOptions;
  readonly #ends = new AbortController();
  readonly #startedAt = performance.now();
  #progressedAt = this.#startedAt;
  #timer: NodeJS.Timeout | undefined;
  #isDisposed = false;

  constructor(options: DeadlineOptions) {
    this.#options = options;
    this.#schedule();
  }

  /** Aborts when the deadline is over. */
  get signal(): AbortSignal {
    return this.#ends.signal;
  }

  /** Seconds from the start to the current deadline. */
  get seconds(): number {
    return Math.floor((this.#endsAt - this.#startedAt) / 1000);
  }

  progressed(): void {
    this.#progressedAt = performance.now();
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    clearTimeout(this.#timer);
  }

  get #endsAt(): number {
    const { quietMs, wholeMs } = this.#options;
    return Math.min(this.#progressedAt + quietMs, this.#startedAt + wholeMs);
  }

  #schedule(): void {
    if (this.#isDisposed || this.#ends.signal.aborted) return;
    const leftMs = Math.max(0, this.#endsAt - performance.now());
    this.#timer = setTimeout(() => void this.#poll(), Math.min(pollMs, leftMs));
    this.#timer.unref();
  }

  /** Polls for progress with a time limit, because a machine may never respond. */
  async #hasProgressed(): Promise<boolean> {
    const look = this.#options.hasProgressed?.();
    if (!look) return false;
    const late = Promise.withResolvers<false>();
    const atMostMs = Math.max(lookMs, this.#endsAt - performance.now());
    const timer = setTimeout(() => late.resolve(false), atMostMs);
    timer.unref();
    return Promise.race([look, late.promise]).finally(() => clearTimeout(timer));
  }

  async #poll(): Promise<void> {
    try {
      if (await this.#hasProgressed()) this.progressed();
      if (performance.now() >= this.#endsAt) this.#ends.abort(new DeadlineOver());
    } catch (error) {
      this.#ends.abort(error);
    }
    this.#schedule();
  }
}
