/**
 * Counts the responses to visitors. A request costs one map look-up and three increments. Each second, counts are
 * written to the database as whole minutes. A write replaces earlier ones of the same minutes, so a repeated flush
 * changes nothing. A graceful shutdown writes everything. A killed server loses the counts since its last flush: one
 * second while the database responds.
 */
import { randomUUID } from "node:crypto";
import type { App } from "#app.ts";
import { Histogram } from "./histogram.ts";
import { type CountedMinute, forgetMinutesBefore, writeMinutes } from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "log">;

/** Stores counted minutes. */
export interface MinuteSink {
  /** Replaces earlier rows of this process for the same minutes. */
  write(rows: readonly CountedMinute[]): Promise<void>;
  forgetBefore(before: Date): Promise<void>;
}

interface Minute {
  /** Start of the minute, in minutes since 1970. */
  at: number;
  requests: number;
  errors: number;
  latencies: Histogram;
  coldStarts: number;
  /** Latencies of wakes. Null for a minute without a wake, which most are. */
  wakes: Histogram | null;
  /** True if the minute has changed since the last write. */
  isNew: boolean;
}

export const minuteMs = 60_000;
const flushEveryMs = 1_000;
const forgetEveryMs = 10 * minuteMs;
/** Time for which rows are kept: a day, and the minute in which it began. */
const keptMs = 24 * 60 * minuteMs + minuteMs;
/** Minutes that are kept in memory for an environment while the database is down: an hour. */
const maxHeld = 60;
/** Rows of a statement. */
const rowsAtOnce = 500;

export class RequestRecorder {
  readonly #app: Needs;
  readonly #sink: MinuteSink;
  /** Id of this process in its rows. A process id would be reused. */
  readonly #writer = randomUUID();
  /** Minutes of each environment, oldest first. */
  readonly #minutes = new Map<string, Minute[]>();
  #lastFlush: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;
  #forgotAt = 0;

  /** The default sink stores minutes of environments. */
  constructor(app: Needs, sink: MinuteSink = environmentMinutes(app)) {
    this.#app = app;
    this.#sink = sink;
  }

  start(): void {
    this.#timer = setInterval(() => {
      this.#tick().catch((error: unknown) =>
        this.#app.log.warn({ error }, "writing request metrics failed; they are kept in memory"),
      );
    }, flushEveryMs).unref();
  }

  /** Writes all counts, and stops the timer. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.flush().catch((error: unknown) =>
      this.#app.log.warn({ error }, "writing the last request metrics failed"),
    );
  }

  observed(environmentId: string, { status, ms }: { status: number; ms: number }): void {
    const minute = this.#minute(environmentId, Math.floor(this.#app.clock.now().getTime() / minuteMs));
    minute.requests += 1;
    if (status >= 500) minute.errors += 1;
    minute.latencies.add(ms);
    minute.isNew = true;
  }

  /** Records that a visitor waited `ms` for a wake. */
  woke(id: string, { ms, isCold }: { ms: number; isCold: boolean }): void {
    const minute = this.#minute(id, Math.floor(this.#app.clock.now().getTime() / minuteMs));
    if (isCold) minute.coldStarts += 1;
    minute.wakes ??= new Histogram();
    minute.wakes.add(ms);
    minute.isNew = true;
  }

  /** Resolves once all responses recorded before the call are in the database. */
  flush(): Promise<void> {
    this.#lastFlush = this.#lastFlush.catch(() => {}).then(() => this.#flush());
    return this.#lastFlush;
  }

  async #tick(): Promise<void> {
    await this.flush();
    const now = this.#app.clock.now().getTime();
    if (now - this.#forgotAt < forgetEveryMs) return;
    this.#forgotAt = now;
    await this.#sink.forgetBefore(new Date(now - keptMs));
  }

  #minute(environmentId: string, at: number): Minute {
    const minutes = this.#minutes.get(environmentId);
    const newest = minutes?.at(-1);
    if (newest?.at === at) return newest;
    const minute: Minute = {
      at,
      requests: 0,
      errors: 0,
      latencies: new Histogram(),
      coldStarts: 0,
      wakes: null,
      isNew: false,
    };
    if (minutes === undefined) this.#minutes.set(environmentId, [minute]);
    else if (minutes.push(minute) > maxHeld) minutes.shift();
    return minute;
  }

  async #flush(): Promise<void> {
    const current = Math.floor(this.#app.clock.now().getTime() / minuteMs);
    const rows: CountedMinute[] = [];
    const written: Minute[] = [];
    for (const [environmentId, minutes] of this.#minutes) {
      for (const minute of minutes.filter(({ isNew }) => isNew)) {
        rows.push(this.#rowOf(environmentId, minute));
        written.push(minute);
        // Responses that are recorded during the write mark the minute as new again.
        minute.isNew = false;
      }
    }
    try {
      for (let at = 0; at < rows.length; at += rowsAtOnce) {
        await this.#sink.write(rows.slice(at, at + rowsAtOnce));
      }
    } catch (error) {
      for (const minute of written) minute.isNew = true;
      throw error;
    }
    for (const [environmentId, minutes] of this.#minutes) {
      const kept = minutes.filter(({ at, isNew }) => isNew || at >= current);
      if (kept.length === 0) this.#minutes.delete(environmentId);
      else if (kept.length < minutes.length) this.#minutes.set(environmentId, kept);
    }
  }

  #rowOf(id: string, { at, latencies, wakes, ...counts }: Minute): CountedMinute {
    const { requests, errors, coldStarts } = counts;
    return {
      id,
      minute: new Date(at * minuteMs),
      writer: this.#writer,
      requests,
      errors,
      coldStarts,
      latencies: latencies.toBytes(),
      wakes: wakes?.toBytes() ?? Buffer.alloc(0),
    };
  }
}

function environmentMinutes(app: Pick<Needs, "db">): MinuteSink {
  return {
    write: (rows) => writeMinutes(app.db, rows),
    forgetBefore: (before) => forgetMinutesBefore(app.db, before),
  };
}
