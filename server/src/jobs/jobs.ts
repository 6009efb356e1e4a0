/**
 * Work that must happen after a commit: graphile-worker on the same PostgreSQL.
 *
 * A job is added in the caller's transaction, so a change of state and its job commit together or not at all. A job
 * runs at least once, so tasks are idempotent. Work for one host goes to a task named `<task>@<host id>`, because a
 * worker takes only names it registers.
 *
 * graphile-worker releases a dead process's jobs after 4 hours. Here every process sends heartbeats to `processes`. Any
 * process releases the locks of worker pools without a heartbeat, within about 10 seconds of a kill -9.
 */
import { randomUUID } from "node:crypto";
import { EventEmitter } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, run, type Runner, type TaskList, type WorkerEvents, type WorkerPool } from "graphile-worker";
import { sql } from "kysely";
import type pg from "pg";
import type { Logger as Log } from "pino";
import type { Db } from "#schema.ts";

export interface JobOptions {
  /** Replaces a job with the same key that has not started yet. */
  key?: string;
  /** Earliest time of the job. Default: now. */
  runAt?: Date;
  /** Jobs of a queue run one after the other. Use few, fixed names, because each is a permanent row. */
  queue?: string;
  /** Maximum of attempts. Default: 25, with exponential backoff from seconds to days. */
  maxAttempts?: number;
}

/** Context of a task. `signal` aborts when the process shuts down. */
export interface JobContext {
  attempt: number;
  maxAttempts: number;
  signal: AbortSignal;
}

export type Tasks = Record<string, (payload: never, context: JobContext) => Promise<void>>;

export interface Jobs {
  /** Id of this process in the table `processes`. */
  readonly processId: string;
  /** Adds a job, in the transaction if `db` is one. */
  add(db: Db, task: string, payload: unknown, options?: JobOptions): Promise<void>;
  /** Cancels a job that has not started yet. */
  cancel(db: Db, key: string): Promise<void>;
  startWorker(tasks: Tasks, options?: { concurrency?: number }): Promise<void>;
  /**
   * Starts no new job, waits up to `graceMs` for the running jobs, then leaves them to another process. May be called
   * again.
   */
  stop(graceMs: number): Promise<void>;
}

/** Interval of the heartbeats, and of the search for dead processes. */
const beatMs = 3_000;
/** Two missed heartbeats and some slack. With the interval of the search, a dead process is found within 9.5 s. */
const deadAfterMs = 6_500;

/** Registers this process and starts its heartbeats. */
export async function openJobs(options: {
  db: Db;
  pool: pg.Pool;
  log: Log;
  hostId: string | null;
  version: string;
}): Promise<Jobs> {
  const jobs = new ProcessJobs(options);
  await jobs.register();
  return jobs;
}

/**
 * Adds a job, in the transaction if `db` is one; for callers without `Jobs`. graphile-worker keeps the signature of its
 * SQL function stable. A call of that function by SQL makes the job part of the transaction.
 */
export async function addJob(
  db: Db,
  task: string,
  payload: unknown,
  options: JobOptions = {},
): Promise<void> {
  await sql`select graphile_worker.add_job(
    ${task}, ${JSON.stringify(payload)}::json, ${options.queue ?? null}::text,
    ${options.runAt?.toISOString() ?? null}::timestamptz, ${options.maxAttempts ?? null}::int,
    ${options.key ?? null}::text)`.execute(db);
}

/** True if a job with this key waits. */
export async function hasJob(db: Db, key: string): Promise<boolean> {
  const { rows } =
    await sql`select from graphile_worker.jobs where key = ${key} and locked_at is null`.execute(db);
  return rows.length > 0;
}

class ProcessJobs implements Jobs {
  readonly processId = randomUUID();
  readonly #db: Db;
  readonly #pool: pg.Pool;
  readonly #log: Log;
  readonly #hostId: string | null;
  readonly #version: string;
  readonly #stopping = new AbortController();
  #beating: Promise<void> | undefined;
  /** Monotonic time at which the last heartbeat was committed. */
  #beatAtMs = performance.now();
  #runner: Runner | undefined;
  #workerPool: WorkerPool | undefined;

  constructor(options: { db: Db; pool: pg.Pool; log: Log; hostId: string | null; version: string }) {
    this.#db = options.db;
    this.#pool = options.pool;
    this.#log = options.log;
    this.#hostId = options.hostId;
    this.#version = options.version;
  }

  add(db: Db, task: string, payload: unknown, options?: JobOptions): Promise<void> {
    return addJob(db, task, payload, options);
  }

  async cancel(db: Db, key: string): Promise<void> {
    await sql`select graphile_worker.remove_job(${key})`.execute(db);
  }

  async register(): Promise<void> {
    await this.#upsertRow();
    this.#beating = this.#sendHeartbeats();
  }

  async startWorker(tasks: Tasks, options: { concurrency?: number } = {}): Promise<void> {
    // A worker without tasks would only log complaints. The heartbeats continue, with the release of other processes'
    // jobs.
    if (Object.keys(tasks).length === 0) return;
    const taskList: TaskList = Object.fromEntries(
      Object.entries(tasks).map(([name, task]) => [
        name,
        (payload, helpers) =>
          task(payload as never, {
            attempt: helpers.job.attempts,
            maxAttempts: helpers.job.max_attempts,
            signal: helpers.abortSignal,
          }),
      ]),
    );
    const events: WorkerEvents = new EventEmitter();
    events.once("pool:create", ({ workerPool }) => (this.#workerPool = workerPool));
    this.#runner = await run({
      pgPool: this.#pool,
      taskList,
      events,
      concurrency: options.concurrency ?? 10,
      // LISTEN/NOTIFY starts a job within milliseconds. The poll covers lost notifications.
      pollInterval: 2_000,
      noHandleSignals: true,
      logger: new Logger((scope) => (level, message, meta) => {
        // graphile-worker logs each job at `info`; for a server these lines are debug details.
        const to = level === "error" ? "error" : level === "warning" ? "warn" : "debug";
        this.#log[to]({ ...scope, error: meta?.["error"] }, message);
      }),
    });
    this.#runner.promise.catch((error: unknown) => this.#log.error({ error }, "the job worker failed"));
    await this.#upsertRow();
  }

  async stop(graceMs: number): Promise<void> {
    const runner = this.#runner;
    this.#runner = undefined;
    if (runner) {
      const stopped = runner.stop("the server shuts down").catch((error: unknown) => {
        this.#log.warn({ error }, "the job worker did not stop cleanly");
      });
      await Promise.race([stopped, sleep(graceMs, undefined, { ref: false })]);
    }
    this.#stopping.abort();
    await this.#beating;
    // Without the row, any process may release the locks of jobs that exceeded the grace period.
    await this.#db.deleteFrom("processes").where("id", "=", this.processId).execute();
  }

  async #sendHeartbeats(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await sleep(beatMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      try {
        const isOnTime = await this.#upsertRow();
        // A stall of PostgreSQL delays all heartbeats. The other processes get one interval to register again.
        if (isOnTime) await this.#releaseDead();
      } catch (error) {
        // PostgreSQL is unavailable: the next heartbeat tries again, and no other process can declare this process dead
        // meanwhile.
        this.#log.warn({ error }, "the heartbeat of this process failed");
      }
    }
  }

  /**
   * Upserts the row of this process, because another process may have removed it. Returns false if the last heartbeat
   * is too old.
   */
  async #upsertRow(): Promise<boolean> {
    const workerPool = this.#workerPool?.id ?? null;
    await this.#db
      .insertInto("processes")
      .values({ id: this.processId, host_id: this.#hostId, worker_pool: workerPool, version: this.#version })
      .onConflict((conflict) =>
        conflict.column("id").doUpdateSet({ seen_at: sql<Date>`now()`, worker_pool: workerPool }),
      )
      .execute();
    const now = performance.now();
    const isOnTime = now - this.#beatAtMs < deadAfterMs;
    this.#beatAtMs = now;
    return isOnTime;
  }

  /**
   * Removes the rows of dead processes and releases their locks. A lock is orphaned if no living process owns it and
   * its owner has had time to register. This rule covers a worker that died before its first heartbeat. This process
   * counts as alive, even if its own heartbeat was committed late.
   */
  async #releaseDead(): Promise<void> {
    const deadline = sql<Date>`now() - make_interval(secs => ${deadAfterMs / 1000})`;
    const own = this.#workerPool?.id ?? null;
    await this.#db
      .deleteFrom("processes")
      .where("seen_at", "<", deadline)
      .where("id", "<>", this.processId)
      .execute();
    const { rows } = await sql<{ locked_by: string }>`
      select distinct locked_by from (
        select locked_by, locked_at from graphile_worker._private_jobs
        union all
        select locked_by, locked_at from graphile_worker._private_job_queues
      ) as locks
      where locked_at < ${deadline} and locked_by is distinct from ${own}::text
        and not exists (select from processes where worker_pool = locks.locked_by)`.execute(this.#db);
    if (rows.length === 0) return;
    const dead = rows.map((row) => row.locked_by);
    await sql`select graphile_worker.force_unlock_workers(${dead}::text[])`.execute(this.#db);
    this.#log.warn({ worker_pools: dead }, "released the jobs of a dead process");
    this.#workerPool?.nudge(dead.length);
  }
}
