/**
 * Removal of resources that ended processes left, such as the control group of an interrupted build. A failed removal
 * is logged, and retried until it succeeds; the caller does not wait. A task in an uninterruptible sleep may take hours
 * to die, and must not delay the server's start.
 */
import { KeyedMutex } from "./keyed-mutex.ts";

const RETRY_MS = 5_000;

export type LeftoverLog = (event: string, fields: Record<string, unknown>) => void;

export class Leftovers {
  readonly #remove: (name: string) => Promise<void>;
  readonly #log: LeftoverLog;
  readonly #retryMs: number;
  readonly #setAside = new Set<string>();
  readonly #mutex = new KeyedMutex<string>();
  #timer: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(options: { remove: (name: string) => Promise<void>; log: LeftoverLog; retryMs?: number }) {
    this.#remove = options.remove;
    this.#log = options.log;
    this.#retryMs = options.retryMs ?? RETRY_MS;
  }

  /** Returns true if the resource was removed, and false if it was set aside for retries. */
  remove(name: string): Promise<boolean> {
    return this.#mutex.run(name, () => this.#attempt(name));
  }

  /** Stops retries for a name that is in use again. */
  async release(name: string): Promise<void> {
    if (!this.#setAside.has(name)) return;
    await this.#mutex.run(name, async () => this.#setAside.delete(name));
  }

  /** Returns the names that are not removed yet. */
  get remaining(): string[] {
    return [...this.#setAside];
  }

  /** Stops retries. The next start finds the remaining resources. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#mutex.waitUntilIdle();
  }

  async #attempt(name: string): Promise<boolean> {
    try {
      await this.#remove(name);
      if (this.#setAside.delete(name)) this.#log("leftover_removed_late", { name });
      return true;
    } catch (error) {
      // The failure is logged once, not with every retry.
      if (!this.#setAside.has(name)) this.#log("leftover_set_aside", { name, error });
      this.#setAside.add(name);
      this.#schedule();
      return false;
    }
  }

  #schedule(): void {
    if (this.#isClosed || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => {
      void this.#retry().then(() => {
        this.#timer = undefined;
        if (this.#setAside.size > 0) this.#schedule();
      });
    }, this.#retryMs).unref();
  }

  async #retry(): Promise<void> {
    const retries = this.remaining.map((name) =>
      // The name may have been released meanwhile, and may be in use again.
      this.#mutex.run(name, async () => this.#setAside.has(name) && this.#attempt(name)),
    );
    await Promise.all(retries);
  }
}
