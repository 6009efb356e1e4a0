/**
 * Polls for due schedules, for ended runs of schedules, and for old records of triggers. Every server process has a
 * scheduler, and none is the leader. If two schedulers poll at once, the second finds nothing to do.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { endExpired } from "../sessions/expire.ts";
import { pruneDeliveries } from "../webhooks/receive.ts";
import { countEndedRuns } from "./failures.ts";
import { fire } from "./fire.ts";
import { type DueSchedule, findDue, findNextDue, pruneTicks } from "./store.ts";

/** Maximum sleep in milliseconds. A schedule that another process created is delayed by at most this time. */
const lookEveryMs = 1_000;
const tidyEveryMs = 60_000;
const ticksKeptMs = 30 * 24 * 3_600_000;
/** Maximum number of schedules per query. Many schedules are due on the hour. */
const atOnce = 100;
const firedAtOnce = 4;

export class Scheduler {
  readonly #app: App;
  readonly #runs: RunExecutor;
  readonly #stopping = new AbortController();
  #looking: Promise<void> | undefined;

  constructor(app: App, runs: RunExecutor) {
    this.#app = app;
    this.#runs = runs;
  }

  start(): void {
    this.#looking = this.#keepLooking();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#looking;
  }

  /** Starts all due runs, and counts ended runs. */
  async sweep(): Promise<void> {
    const { db, clock } = this.#app;
    for (;;) {
      const due = await findDue(db, clock.now(), atOnce);
      const turns = new Semaphore(firedAtOnce);
      const fired = await Promise.all(due.map((schedule) => turns.run(() => this.#fire(schedule))));
      if (due.length < atOnce || fired.includes(false) || this.#stopping.signal.aborted) break;
    }
    await countEndedRuns(this.#app);
  }

  /** Prunes old records of schedules and webhooks. */
  async prune(): Promise<void> {
    const now = this.#app.clock.now();
    await pruneTicks(this.#app.db, new Date(now.getTime() - ticksKeptMs));
    await pruneDeliveries(this.#app.db, now);
    await endExpired(this.#app, now);
  }

  /** Starts the run of a schedule. Returns false if the schedule stays due for a retry. */
  async #fire(schedule: DueSchedule): Promise<boolean> {
    try {
      await fire(this.#app, this.#runs, schedule);
      return true;
    } catch (error) {
      this.#app.log.error(
        { error, schedule: schedule.id },
        "could not start the run of a schedule; will retry",
      );
      return false;
    }
  }

  async #keepLooking(): Promise<void> {
    const { signal } = this.#stopping;
    let tidiedMs = 0;
    while (!signal.aborted) {
      try {
        await this.sweep();
        if (performance.now() - tidiedMs >= tidyEveryMs) {
          tidiedMs = performance.now();
          await this.prune();
        }
      } catch (error) {
        this.#app.log.warn({ error }, "could not read due schedules");
      }
      await sleep(await this.#pauseMs(), undefined, { signal, ref: false }).catch(() => {});
    }
  }

  async #pauseMs(): Promise<number> {
    const next = await findNextDue(this.#app.db).catch(() => undefined);
    const untilMs = next ? next.getTime() - this.#app.clock.now().getTime() : lookEveryMs;
    // A schedule whose start just failed is not retried at once.
    return untilMs > 0 ? Math.min(untilMs, lookEveryMs) : lookEveryMs;
  }
}
