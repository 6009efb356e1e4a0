/**
 * Decides the order in which work of several owners starts. The owner with the fewest running entries comes first.
 * Among equals, the owner whose last work ended longest ago comes first, then the entry that waits longest. Only ends
 * within the last hour count. Waiting entries do not count: otherwise an owner with one waiting entry at a time would
 * block an owner with two waiting entries for ever.
 *
 * Queues in memory use `FairQueue`. Queues in tables use `nextInTurn` (jobs), which gives the same order.
 */

/** Time for which the end of an owner's work is remembered. */
const rememberedMs = 60 * 60_000;

/** Owners whose work ended within the last hour. */
export class RecentOwners {
  readonly #now: () => number;
  /** Last end of each owner's work, ordered by time. */
  readonly #ends = new Map<string, { atMs: number; number: number }>();
  #count = 0;

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Records that work of this owner ended. */
  recordEnd(owner: string): void {
    this.#evictOld();
    this.#ends.delete(owner);
    this.#ends.set(owner, { atMs: this.#now(), number: (this.#count += 1) });
  }

  /**
   * Returns a number that is higher the later the owner's work ended. Returns 0 if no work ended within the last hour.
   */
  rank(owner: string): number {
    this.#evictOld();
    return this.#ends.get(owner)?.number ?? 0;
  }

  /** True if work of another owner ended within the last hour. */
  hasOther(owner: string): boolean {
    this.#evictOld();
    return this.#ends.size > (this.#ends.has(owner) ? 1 : 0);
  }

  /** Lists the owners, beginning with the owner whose work ended longest ago. */
  list(): string[] {
    this.#evictOld();
    return [...this.#ends.keys()];
  }

  #evictOld(): void {
    const since = this.#now() - rememberedMs;
    for (const [owner, { atMs }] of this.#ends) {
      if (atMs > since) return;
      this.#ends.delete(owner);
    }
  }
}

export interface FairQueueOptions {
  /** Maximum of entries that run at once. */
  limit: number;
  /** Maximum of running entries for each owner. Unbounded by default. */
  perOwner?: number;
  /** An owner leaves one place free while another owner's work runs, or ended within the last hour. */
  keepsOneFree?: boolean;
}

interface Entry<T> {
  item: T;
  number: number;
  /** Entries of the same key run one after the other. */
  key: string | undefined;
}

/** An entry that has started. */
export interface Turn<T> {
  item: T;
  /** Releases the entry's place. */
  end: () => void;
}

export class FairQueue<T> {
  readonly #limit: number;
  readonly #perOwner: number;
  readonly #leavesOne: boolean;
  readonly #recent = new RecentOwners();
  readonly #running = new Map<string, number>();
  readonly #runningKeys = new Set<string>();
  /** Waiting entries by owner, in the order of arrival. */
  readonly #waiting = new Map<string, Set<Entry<T>>>();
  #free: number;
  #count = 0;

  constructor({ limit, perOwner = limit, keepsOneFree: leavesOne = false }: FairQueueOptions) {
    this.#limit = limit;
    this.#leavesOne = leavesOne;
    this.#perOwner = perOwner;
    this.#free = limit;
  }

  get isIdle(): boolean {
    return this.#free === this.#limit && this.#waiting.size === 0;
  }

  /** Number of waiting entries of this owner. */
  waiting(owner: string): number {
    return this.#waiting.get(owner)?.size ?? 0;
  }

  /** Returns a function that removes the entry; it returns false when the entry runs or ran. */
  add(owner: string, item: T, key?: string): () => boolean {
    const entry: Entry<T> = { item, number: (this.#count += 1), key };
    const entries = this.#waiting.get(owner) ?? new Set();
    this.#waiting.set(owner, entries.add(entry));
    return () => this.#remove(owner, entry);
  }

  /** Starts the next entry. Undefined if no waiting entry may run. */
  next(): Turn<T> | undefined {
    if (this.#free === 0) return undefined;
    let best: { owner: string; entry: Entry<T>; place: readonly number[] } | undefined;
    for (const [owner, entries] of this.#waiting) {
      const running = this.#running.get(owner) ?? 0;
      if (running >= this.#limitOf(owner)) continue;
      const entry = entries.values().find(({ key }) => key === undefined || !this.#runningKeys.has(key));
      if (!entry) continue;
      const place = [running, this.#recent.rank(owner), entry.number];
      if (!best || isBefore(place, best.place)) best = { owner, entry, place };
    }
    if (!best) return undefined;
    const { owner, entry } = best;
    this.#remove(owner, entry);
    this.#free -= 1;
    this.#running.set(owner, (this.#running.get(owner) ?? 0) + 1);
    if (entry.key !== undefined) this.#runningKeys.add(entry.key);
    let isRunning = true;
    return {
      item: entry.item,
      end: () => {
        if (!isRunning) return;
        isRunning = false;
        this.#end(owner, entry);
      },
    };
  }

  #limitOf(owner: string): number {
    const hasOther = this.#recent.hasOther(owner) || this.#running.size > (this.#running.has(owner) ? 1 : 0);
    if (!this.#leavesOne || !hasOther) return this.#perOwner;
    return Math.min(this.#perOwner, Math.max(1, this.#limit - 1));
  }

  #remove(owner: string, entry: Entry<T>): boolean {
    const entries = this.#waiting.get(owner);
    if (!entries?.delete(entry)) return false;
    if (entries.size === 0) this.#waiting.delete(owner);
    return true;
  }

  #end(owner: string, { key }: Entry<T>): void {
    const running = this.#running.get(owner)! - 1;
    if (running > 0) this.#running.set(owner, running);
    else this.#running.delete(owner);
    if (key !== undefined) this.#runningKeys.delete(key);
    this.#free += 1;
    this.#recent.recordEnd(owner);
  }
}

function isBefore(a: readonly number[], b: readonly number[]): boolean {
  for (const [index, value] of a.entries()) {
    if (value !== b[index]) return value < b[index]!;
  }
  return false;
}
