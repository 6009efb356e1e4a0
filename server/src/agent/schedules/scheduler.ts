/**
 * What looks at the clock: schedules that are due, runs of theirs that ended, and what triggers leave behind. Every
 * server process has one and none is in charge; who is second finds nothing to do.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type { AgentRuns } from "../runs/engine/run-executor.ts";
import { endExpired } from "../sessions/expire.ts";
import { forgetDeliveries } from "../webhooks/receive.ts";
import { countEnded } from "./failures.ts";
import { fire } from "./fire.ts";
import { type DueSchedule, findDue, findNextDue, forgetTicks } from "./store.ts";

/** The longest it sleeps: what another process was told of is noticed by then. */
const lookEveryMs = 1_000;
const tidyEveryMs = 60_000;
const ticksKeptMs = 30 * 24 * 3_600_000;
/** Of those that are due at once, as on the hour. */
const atOnce = 100;
const firedAtOnce = 4;

export class Scheduler {
  readonly #app: App;
  readonly #runs: AgentRuns;
  readonly #stopping = new AbortController();
  #looking: Promise<void> | undefined;

  constructor(app: App, runs: AgentRuns) {
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

  /** Runs what is due, all of it, and counts what ended. */
  async look(): Promise<void> {
    const { db, clock } = this.#app;
    for (;;) {
      const due = await findDue(db, clock.now(), atOnce);
      const turns = new Semaphore(firedAtOnce);
      const fired = await Promise.all(due.map((schedule) => turns.run(() => this.#fire(schedule))));
      if (due.length < atOnce || fired.includes(false) || this.#stopping.signal.aborted) break;
    }
    await countEnded(this.#app);
  }

  /** What nobody needs any more goes. */
  async tidy(): Promise<void> {
    const now = this.#app.clock.now();
    await forgetTicks(this.#app.db, new Date(now.getTime() - ticksKeptMs));
    await forgetDeliveries(this.#app.db, now);
    await endExpired(this.#app, now);
  }

  /** False where it stays due, for another look. */
  async #fire(schedule: DueSchedule): Promise<boolean> {
    try {
      await fire(this.#app, this.#runs, schedule);
      return true;
    } catch (error) {
      this.#app.log.error({ error, schedule: schedule.id }, "a schedule was left for another try");
      return false;
    }
  }

  async #keepLooking(): Promise<void> {
    const { signal } = this.#stopping;
    let tidiedMs = 0;
    while (!signal.aborted) {
      try {
        await this.look();
        if (performance.now() - tidiedMs >= tidyEveryMs) {
          tidiedMs = performance.now();
          await this.tidy();
        }
      } catch (error) {
        this.#app.log.warn({ error }, "schedules were not looked at");
      }
      await sleep(await this.#pauseMs(), undefined, { signal, ref: false }).catch(() => {});
    }
  }

  async #pauseMs(): Promise<number> {
    const next = await findNextDue(this.#app.db).catch(() => undefined);
    const untilMs = next ? next.getTime() - this.#app.clock.now().getTime() : lookEveryMs;
    // What is due already failed just now: not at once again.
    return untilMs > 0 ? Math.min(untilMs, lookEveryMs) : lookEveryMs;
  }
}
