/**
 * Writes a run's events. An event is stored before watchers are notified. Deltas of the model are small and many, so
 * all deltas of 50 ms are stored together; a single delta is stored at once. Each commit also adds the active time
 * since the previous commit. A commit fails if another process has acquired the run or if the database is down. A
 * failed commit aborts the run.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { advance, type AdvancedRun, type ChangeParts, type NewEvent, type RunChange } from "./journal.ts";
import type { Claim } from "./claim.ts";

/** Thrown if another process executes this run, or if the run has ended. */
export class LostRun extends Error {
  override readonly name = "LostRun";
}

const groupMs = 50;

export class RunWriter {
  readonly #app: Pick<App, "db" | "clock">;
  readonly #claim: Claim;
  /** Callback after each commit, with the updated row. */
  readonly #stored: (row: AdvancedRun) => void;
  /** Callback with the error of a failed commit. The callback runs once. */
  readonly #broken: (error: unknown) => void;
  #waiting: NewEvent[] = [];
  #timer: NodeJS.Timeout | undefined;
  #dueMs = 0;
  #storing: Promise<void> = Promise.resolve();
  #lastMs = 0;
  /** Time until which the run's active time is stored or being stored. */
  #countedMs = performance.now();
  /** Start of the current wait for a person. Such a wait does not count as active time. */
  #pausedMs: number | undefined;

  constructor(
    app: Pick<App, "db" | "clock">,
    claim: Claim,
    hooks: { stored: (row: AdvancedRun) => void; broken: (error: unknown) => void },
  ) {
    this.#app = app;
    this.#claim = claim;
    this.#stored = hooks.stored;
    this.#broken = hooks.broken;
  }

  /**
   * Stores the event within 50 ms. A delta is appended to a waiting event of the same kind. If no event was stored in
   * the last 50 ms, a delta is stored at once. So the first events of a step mostly share the commit of the step's
   * result.
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

  /** Commits the waiting events, then `events`, with a change of the run and its further parts. Throws `LostRun`. */
  commit(events: readonly NewEvent[], change: RunChange, beside: ChangeParts = {}): Promise<AdvancedRun> {
    return this.#commit(events, change, (all, whole) =>
      advance(this.#app.db, this.#claim, all, whole, beside),
    );
  }

  /** Commits as `commit` does, with further statements in the same transaction. */
  commitWith(
    events: readonly NewEvent[],
    change: RunChange,
    more: (tx: Db) => Promise<void>,
  ): Promise<AdvancedRun> {
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
    store: (events: readonly NewEvent[], change: RunChange) => Promise<AdvancedRun | undefined>,
  ): Promise<AdvancedRun> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#storing;
    // Parallel tool calls commit concurrently. The lock on the run's row orders these commits.
    const waiting = this.#take();
    const activeMs = this.#lap();
    try {
      const row = await store([...waiting, ...events], { ...change, activeMs });
      if (!row) throw new LostRun();
      this.#stored(row);
      return row;
    } catch (error) {
      // After a failure, the next commit stores the waiting events and the active time.
      this.#waiting.unshift(...waiting);
      this.#countedMs -= activeMs;
      throw error;
    }
  }

  /** Discards waiting events. Returns the active time that is not stored yet. */
  async close(): Promise<number> {
    clearTimeout(this.#timer);
    this.#waiting = [];
    await this.#storing;
    return this.#lap();
  }

  /** Returns the whole milliseconds since the previous commit. Parallel calls share this time, so it counts once. */
  #lap(): number {
    const ms = Math.floor((this.#pausedMs ?? performance.now()) - this.#countedMs);
    this.#countedMs += ms;
    return ms;
  }

  /** Stops the active time while the run waits for a person with an open call. */
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
        // The next commit stores these events first, so that an answer's text always precedes its end.
        this.#waiting.unshift(...events);
        this.#countedMs -= activeMs;
        this.#broken(error);
      }
    });
  }
}
