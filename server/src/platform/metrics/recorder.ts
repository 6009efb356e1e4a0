/**
 * Counts what visitors are answered. A request costs a look into a map and three increments; what was counted goes to
 * the database each second, whole minutes in place of the same minutes written before, so that a flush that is repeated
 * changes nothing. A server that is shut down writes what it has; one that is killed loses what came after its last
 * flush: a second's visitors while the database answers.
 */
import { randomUUID } from "node:crypto";
import type { App } from "#app.ts";
import { Histogram } from "./histogram.ts";
import { type CountedMinute, forgetMinutesBefore, writeMinutes } from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "log">;

/** Where minutes go. */
export interface MinuteSink {
  /** In place of what the same writer wrote of the same minutes before. */
  write(rows: readonly CountedMinute[]): Promise<void>;
  forgetBefore(before: Date): Promise<void>;
}

interface Minute {
  /** Minutes since 1970. */
  at: number;
  requests: number;
  errors: number;
  latencies: Histogram;
  coldStarts: number;
  /** Null where nothing was woken: most minutes. */
  wakes: Histogram | null;
  /** Something came since it was last written. */
  isNew: boolean;
}

export const minuteMs = 60_000;
const flushEveryMs = 1_000;
const forgetEveryMs = 10 * minuteMs;
/** A day, and the minute it began in. */
const keptMs = 24 * 60 * minuteMs + minuteMs;
/** While the database is away this is what is held: an hour of one environment's minutes. */
const maxHeld = 60;
/** Of one statement. */
const rowsAtOnce = 500;

export class RequestRecorder {
  readonly #app: Needs;
  readonly #sink: MinuteSink;
  /** Rows are one process's; a number of a process comes again. */
  readonly #writer = randomUUID();
  /** The newest last. */
  readonly #minutes = new Map<string, Minute[]>();
  #lastFlush: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;
  #forgotAt = 0;

  /** Environments' minutes where no other sink is given. */
  constructor(app: Needs, sink: MinuteSink = environmentMinutes(app)) {
    this.#app = app;
    this.#sink = sink;
  }

  start(): void {
    this.#timer = setInterval(() => {
      this.#tick().catch((error: unknown) =>
        this.#app.log.warn({ error }, "request metrics could not be written; they are held"),
      );
    }, flushEveryMs).unref();
  }

  /** Writes what there is, and counts no more by itself. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.flush().catch((error: unknown) =>
      this.#app.log.warn({ error }, "the last request metrics could not be written"),
    );
  }

  observed(environmentId: string, { status, ms }: { status: number; ms: number }): void {
    const minute = this.#minute(environmentId, Math.floor(this.#app.clock.now().getTime() / minuteMs));
    minute.requests += 1;
    if (status >= 500) minute.errors += 1;
    minute.latencies.add(ms);
    minute.isNew = true;
  }

  /** Somebody waited `ms` for a wake. */
  woke(id: string, { ms, isCold }: { ms: number; isCold: boolean }): void {
    const minute = this.#minute(id, Math.floor(this.#app.clock.now().getTime() / minuteMs));
    if (isCold) minute.coldStarts += 1;
    minute.wakes ??= new Histogram();
    minute.wakes.add(ms);
    minute.isNew = true;
  }

  /** When it settles, the database has everything that was observed before it was called. */
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
        // What comes while it is being written is new again.
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
