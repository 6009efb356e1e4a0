/**
 * The order in which work of several owners begins. Next is the owner with the fewest running entries; of equals, the
 * owner whose last work ended longest ago within the last hour; then the entry that waits longest. Waiting entries do
 * not count: an owner with a single waiting entry would else hold off an owner with two for ever.
 *
 * Queues in memory are a `FairQueue`; queues in tables use the same order by `nextInTurn` (jobs).
 */

/** Earlier ends are forgotten. */
const rememberedMs = 60 * 60_000;

/** Owners whose work ended within the last hour. */
export class RecentOwners {
  readonly #now: () => number;
  /** In the order of the ends. */
  readonly #ends = new Map<string, { atMs: number; number: number }>();
  #count = 0;

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Work of this owner ended. */
  note(owner: string): void {
    this.#forgetOld();
    this.#ends.delete(owner);
    this.#ends.set(owner, { atMs: this.#now(), number: (this.#count += 1) });
  }

  /** Greater for a later end; 0 without an end within the last hour. */
  rank(owner: string): number {
    this.#forgetOld();
    return this.#ends.get(owner)?.number ?? 0;
  }

  /** Whether work of any other owner ended within the last hour. */
  hasOther(owner: string): boolean {
    this.#forgetOld();
    return this.#ends.size > (this.#ends.has(owner) ? 1 : 0);
  }

  /** The owner whose work ended longest ago comes first. */
  list(): string[] {
    this.#forgetOld();
    return [...this.#ends.keys()];
  }

  #forgetOld(): void {
    const since = this.#now() - rememberedMs;
    for (const [owner, { atMs }] of this.#ends) {
      if (atMs > since) return;
      this.#ends.delete(owner);
    }
  }
}

export interface FairQueueOptions {
  /** Most entries that run at once. */
  limit: number;
  /** Most running entries of one owner. Unbounded by default. */
  perOwner?: number;
  /** An owner leaves one place free while work of another runs, or ended within the last hour. */
  leavesOne?: boolean;
}

interface Entry<T> {
  item: T;
  number: number;
  /** Entries of the same key run one after the other. */
  key: string | undefined;
}

/** Returned for an entry that runs. */
export interface Turn<T> {
  item: T;
  /** Frees the place of the entry. */
  end: () => void;
}

export class FairQueue<T> {
  readonly #limit: number;
  readonly #perOwner: number;
  readonly #leavesOne: boolean;
  readonly #recent = new RecentOwners();
  readonly #running = new Map<string, number>();
  readonly #runningKeys = new Set<string>();
  /** Entries of an owner are in the order of arrival. */
  readonly #waiting = new Map<string, Set<Entry<T>>>();
  #free: number;
  #count = 0;

  constructor({ limit, perOwner = limit, leavesOne = false }: FairQueueOptions) {
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

  /** Undefined while no entry waits that may run. */
  next(): Turn<T> | undefined {
    if (this.#free === 0) return undefined;
    let best: { owner: string; entry: Entry<T>; place: readonly number[] } | undefined;
    for (const [owner, entries] of this.#waiting) {
      const running = this.#running.get(owner) ?? 0;
      if (running >= this.#mostOf(owner)) continue;
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

  #mostOf(owner: string): number {
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
    this.#recent.note(owner);
  }
}

function isBefore(a: readonly number[], b: readonly number[]): boolean {
  for (const [index, value] of a.entries()) {
    if (value !== b[index]) return value < b[index]!;
  }
  return false;
}
