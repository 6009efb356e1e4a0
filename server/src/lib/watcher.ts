/**
 * Rows that many readers follow. A single query polls all rows that had no notification since the last poll. A reader
 * waits for a change of its row, and then continues to read. Readers of a row at the same position share the read and
 * its result.
 */

/** Returns a text for each row that changes whenever the row changes. Deleted rows are left out. */
export type ReadStates = (ids: readonly string[]) => Promise<Iterable<readonly [id: string, state: string]>>;

interface Row<News> {
  watches: number;
  /** True if the row was watched or notified since the last poll, so that the next poll can skip it. */
  isFresh: boolean;
  /** Undefined until the first poll. */
  state: string | undefined;
  waiting: Set<(news?: News) => void>;
  /** Reads in flight, by position. */
  reads: Map<string, Promise<unknown>>;
}

export interface Watch<News> {
  /** Resolves after a change, with its news if known, or when the signal aborts. Call `next` before you read. */
  next(signal: AbortSignal): Promise<News | undefined>;
  /** Runs `work`, and shares its result with all readers of the same position until the next change. */
  read<T>(place: string, work: () => Promise<T>): Promise<T>;
  end(): void;
}

export class Watcher<News = never> {
  readonly #everyMs: number;
  readonly #look: ReadStates;
  readonly #rows = new Map<string, Row<News>>();
  #timer: NodeJS.Timeout | undefined;
  #isLooking = false;

  constructor(everyMs: number, look: ReadStates) {
    this.#everyMs = everyMs;
    this.#look = look;
  }

  watch(id: string): Watch<News> {
    const row = this.#rows.get(id) ?? newRow<News>();
    this.#rows.set(id, row);
    row.watches += 1;
    this.#timer ??= setInterval(() => void this.#poll(), this.#everyMs).unref();
    let isOpen = true;
    return {
      next: (signal) => wait(row, signal),
      read: (place, work) => share(row, place, work),
      end: () => {
        if (!isOpen) return;
        isOpen = false;
        row.watches -= 1;
        if (row.watches === 0) this.#rows.delete(id);
        if (this.#rows.size > 0) return;
        clearInterval(this.#timer);
        this.#timer = undefined;
      },
    };
  }

  /** Wakes the readers of a row that this process changed, without waiting for the next poll. */
  notify(id: string, news?: News): void {
    const row = this.#rows.get(id);
    if (!row) return;
    row.isFresh = true;
    wake(row, news);
  }

  async #poll(): Promise<void> {
    if (this.#isLooking) return;
    const quiet = [...this.#rows].filter(([, row]) => !row.isFresh);
    for (const row of this.#rows.values()) row.isFresh = false;
    if (quiet.length === 0) return;
    this.#isLooking = true;
    try {
      const states = new Map(await this.#look(quiet.map(([id]) => id)));
      for (const [id, row] of quiet) {
        const state = states.get(id) ?? "gone";
        if (state === row.state) continue;
        row.state = state;
        wake(row);
      }
    } catch {
      // The database is unavailable: each reader gets the error from its own read.
      for (const [, row] of quiet) wake(row);
    } finally {
      this.#isLooking = false;
    }
  }
}

/** The watchers of all databases: each database has one watcher. */
export class Watchers<Db extends object> {
  readonly #watchers = new WeakMap<Db, Watcher>();
  readonly #everyMs: number;
  readonly #look: (db: Db, ids: readonly string[]) => ReturnType<ReadStates>;

  constructor(everyMs: number, look: (db: Db, ids: readonly string[]) => ReturnType<ReadStates>) {
    this.#everyMs = everyMs;
    this.#look = look;
  }

  watch(db: Db, id: string): Watch<never> {
    let watcher = this.#watchers.get(db);
    if (!watcher) {
      watcher = new Watcher(this.#everyMs, (ids) => this.#look(db, ids));
      this.#watchers.set(db, watcher);
    }
    return watcher.watch(id);
  }
}

/**
 * Reads a row page by page for one reader until `read` returns undefined or the signal aborts. `isAll` means that the
 * reader has everything until the next change.
 */
export async function* readWatched<Page extends { isAll: boolean }>(
  watch: Watch<never>,
  {
    place,
    read,
    signal,
  }: { place: () => number; read: (after: number) => Promise<Page | undefined>; signal: AbortSignal },
): AsyncGenerator<Page> {
  const waiting = new AbortController();
  const ended = AbortSignal.any([signal, waiting.signal]);
  try {
    let news: Promise<unknown> | undefined;
    while (!signal.aborted) {
      news ??= watch.next(ended);
      const after = place();
      const page = await watch.read(String(after), () => read(after));
      if (!page) return;
      yield page;
      if (!page.isAll) continue;
      await news;
      news = undefined;
    }
  } finally {
    waiting.abort();
    watch.end();
  }
}

function newRow<News>(): Row<News> {
  return { watches: 0, isFresh: true, state: undefined, waiting: new Set(), reads: new Map() };
}

function wake<News>(row: Row<News>, news?: News): void {
  // Reads in flight began before the change, and may not show it.
  row.reads.clear();
  const waiting = [...row.waiting];
  row.waiting.clear();
  for (const resolve of waiting) resolve(news);
}

function wait<News>(row: Row<News>, signal: AbortSignal): Promise<News | undefined> {
  return new Promise((resolve) => {
    const finish = (news?: News) => {
      row.waiting.delete(finish);
      signal.removeEventListener("abort", abort);
      resolve(news);
    };
    const abort = () => finish();
    if (signal.aborted) return finish();
    row.waiting.add(finish);
    signal.addEventListener("abort", abort, { once: true });
  });
}

function share<News, T>(row: Row<News>, place: string, work: () => Promise<T>): Promise<T> {
  const running = row.reads.get(place) as Promise<T> | undefined;
  if (running) return running;
  const read = work().finally(() => {
    if (row.reads.get(place) === read) row.reads.delete(place);
  });
  row.reads.set(place, read);
  return read;
}
