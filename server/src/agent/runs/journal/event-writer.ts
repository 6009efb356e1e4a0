/**
 * The log of a run while it is written. Events are stored before anybody is told of them; what a model says comes in
 * many small pieces, so those of 50 ms are stored together, and a piece that comes alone at once. The time that the run
 * is worked on goes along with whatever is stored, each millisecond once. A store that fails, because the run is
 * somebody else's by now or the database is away, ends the work at its next turn.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { advance, type Advanced, type Beside, type NewEvent, type RunChange } from "./journal.ts";
import type { Claim } from "./claim.ts";

/** This run is carried out by somebody else, or is over. */
export class LostRun extends Error {
  override readonly name = "LostRun";
}

const groupMs = 50;

export class RunWriter {
  readonly #app: Pick<App, "db" | "clock">;
  readonly #claim: Claim;
  /** Told after each commit. */
  readonly #stored: (row: Advanced) => void;
  /** Told once, of what can't be stored. */
  readonly #broken: (error: unknown) => void;
  #waiting: NewEvent[] = [];
  #timer: NodeJS.Timeout | undefined;
  #dueMs = 0;
  #storing: Promise<void> = Promise.resolve();
  #lastMs = 0;
  /** Up to here the run's time is in its row, or in what is being stored. */
  #countedMs = performance.now();
  /** Start of a wait for a person, which is no time of the run. */
  #pausedMs: number | undefined;

  constructor(
    app: Pick<App, "db" | "clock">,
    claim: Claim,
    hooks: { stored: (row: Advanced) => void; broken: (error: unknown) => void },
  ) {
    this.#app = app;
    this.#claim = claim;
    this.#stored = hooks.stored;
    this.#broken = hooks.broken;
  }

  /**
   * Stored within 50 ms; a piece of what is said at once where none was stored in the 50 ms before it, and into the
   * event that waits where there is one. What a step begins with mostly goes along with what comes of it.
   */
  add(type: string, data: Record<string, unknown>): void {
    const last = this.#waiting.at(-1);
    if (
      last?.type === type &&
      typeof data["delta"] === "string" &&
      last.data["message_id"] === data["message_id"]
    ) {
      last.data["delta"] = `${last.data["delta"] as string}${data["delta"]}`;
    } else {
      this.#waiting.push({ type, at: this.#app.clock.now(), data: { ...data } });
    }
    const isSaid = typeof data["delta"] === "string";
    this.#flushBy((isSaid ? this.#lastMs : performance.now()) + groupMs);
  }

  /** What waits, and then these, with a change of the run and what belongs to it. Throws `LostRun`. */
  commit(events: readonly NewEvent[], change: RunChange, beside: Beside = {}): Promise<Advanced> {
    return this.#commit(events, change, (all, whole) =>
      advance(this.#app.db, this.#claim, all, whole, beside),
    );
  }

  /** The same, with more that is to be there with it or not at all. */
  commitWith(
    events: readonly NewEvent[],
    change: RunChange,
    more: (tx: Db) => Promise<void>,
  ): Promise<Advanced> {
    return this.#commit(events, change, (all, whole) =>
      transaction(this.#app.db, async (tx) => {
        const row = await advance(tx, this.#claim, all, whole);
        if (row) await more(tx);
        return row;
      }),
    );
  }

  async #commit(
    events: readonly NewEvent[],
    change: RunChange,
    store: (events: readonly NewEvent[], change: RunChange) => Promise<Advanced | undefined>,
  ): Promise<Advanced> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#storing;
    // Calls of tools end beside one another: the run's row puts their commits in an order.
    const waiting = this.#take();
    const activeMs = this.#lap();
    try {
      const row = await store([...waiting, ...events], { ...change, activeMs });
      if (!row) throw new LostRun();
      this.#stored(row);
      return row;
    } catch (error) {
      // What is refused here takes nothing with it that others said, nor the time that went by.
      this.#waiting.unshift(...waiting);
      this.#countedMs -= activeMs;
      throw error;
    }
  }

  /** What waits is thrown away. Answers the time that no row counts yet. */
  async close(): Promise<number> {
    clearTimeout(this.#timer);
    this.#waiting = [];
    await this.#storing;
    return this.#lap();
  }

  /** Whole milliseconds since the last. Calls end beside one another, so it is time that is counted, not theirs. */
  #lap(): number {
    const ms = Math.floor((this.#pausedMs ?? performance.now()) - this.#countedMs);
    this.#countedMs += ms;
    return ms;
  }

  /** The run waits for a person, with a call open: this is not its time. */
  pauseClock(): void {
    this.#pausedMs ??= performance.now();
  }

  resumeClock(): void {
    if (this.#pausedMs !== undefined) this.#countedMs += performance.now() - this.#pausedMs;
    this.#pausedMs = undefined;
  }

  #take(): NewEvent[] {
    const taken = this.#waiting;
    this.#waiting = [];
    return taken;
  }

  #flushBy(dueMs: number): void {
    if (this.#timer && this.#dueMs <= dueMs) return;
    clearTimeout(this.#timer);
    this.#dueMs = dueMs;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        this.#flush();
      },
      Math.max(0, dueMs - performance.now()),
    );
  }

  #flush(): void {
    this.#storing = this.#storing.then(async () => {
      const events = this.#take();
      if (events.length === 0) return;
      this.#lastMs = performance.now();
      const activeMs = this.#lap();
      try {
        const row = await advance(this.#app.db, this.#claim, events, { activeMs });
        if (!row) throw new LostRun();
        await passKillPoint("agent.events.stored");
        this.#stored(row);
      } catch (error) {
        // Whatever is stored yet has them before it: an answer is not over without its words.
        this.#waiting.unshift(...events);
        this.#countedMs -= activeMs;
        this.#broken(error);
      }
    });
  }
}
