/**
 * Executes runs. A run is a row until it ends; this class has the runs that this process executes. The class notifies
 * watchers of stored changes, and polls every second for orphans: runs whose process is gone. An acquired run gets a
 * new attempt number, which fences off writes of the earlier process. No process executes a run that waits for a
 * person.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { isTransient } from "#db/transient-errors.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { type Watch, Watcher } from "#lib/watcher.ts";
import { deleteContents } from "#agent/approvals/approvals.ts";
import { expireDue } from "#agent/approvals/expire.ts";
import { resolveWaits } from "#agent/oauth/waits/resolve.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import { type Fetch, modelFetch, ownedFetch } from "#agent/models/fetch.ts";
import { clearActorCache } from "#accounts/find-actor.ts";
import { endTokensOf } from "#accounts/tokens/run-tokens.ts";
import { endEphemeral } from "#agent/sessions/expire.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import { openTracing, type Tracing } from "#agent/tracing/tracing.ts";
import type { NewRun } from "../api/insert-run.ts";
import { executeRun } from "./execute-run.ts";
import { buildFailure } from "../journal/end-run.ts";
import { failureOf, ModelBusy, RunFailure } from "./run-failure.ts";
import { stripExpiredTexts } from "../journal/strip-texts.ts";
import type { NewEvent, RunChange } from "../journal/journal.ts";
import { findOrphans, findState, releaseRun, type RunRow, statesOf, acquireRun } from "../store.ts";
import { isOver, type RunStatus } from "../states.ts";
import { exportRootSpan } from "./trace-run.ts";
import { RunInterrupted } from "./run-context.ts";
import { startTurns } from "./turns.ts";
import { recoverQuestions } from "./questions.ts";
import { LostRun, RunWriter } from "../journal/event-writer.ts";
import type { AcquiredRun } from "./run-context.ts";

/**
 * Maximum number of runs in this process. A run takes a connection to a model and some kilobytes of memory. Further
 * runs wait as rows.
 */
const maxConcurrent = 1_000;
/**
 * Maximum number of runs of one workspace in this process, so that a busy workspace or slow tools do not block other
 * workspaces.
 */
const maxPerWorkspace = 50;
const pollEveryMs = 1_000;
/** Interval at which watched runs are polled for changes by other processes. */
const watchEveryMs = 500;
/** Maximum number of failed executions of a run. A run with more probably causes the crashes of its processes. */
const attemptsMax = 10;

export class RunExecutor {
  readonly #app: App;
  readonly #hostId: string | null;
  readonly #pauseMs: number;
  readonly #maxPerWorkspace: number;
  readonly #heldWorkspaces: () => readonly string[];
  readonly #gatherMs: number | undefined;
  readonly #executing = new Map<
    string,
    {
      stop: AbortController;
      done: Promise<void>;
      isResubmitted: boolean;
      /** Status of the run. Undefined if another request ended the run: then the row contains the status. */
      status: RunStatus | undefined;
    }
  >();
  readonly #guarded = new Set<string>();
  readonly #watcher: Watcher<RunStatus>;
  readonly #stopping = new AbortController();
  #fetch: Fetch | undefined;
  #api: OwnApi | undefined;
  #tracing: Tracing | undefined;
  #polling: Promise<void> | undefined;
  #erasing: Promise<void> | undefined;
  readonly #eraseEveryMs: number;
  /** True if runs wait for a free slot in this process. */
  #hasBacklog = false;
  #refilling: Promise<void> | undefined;
  /** True if some runs may wait until earlier runs of their session have ended. */
  #hasWaitingTurns = true;

  /**
   * `hostId`: host whose earlier processes are dead. `pauseMs`: pause before the first retry of a model.
   * `maxPerWorkspace`: maximum number of concurrent runs of one workspace. `eraseEveryMs`: interval at which expired
   * texts are erased. `gatherMs`: delay before spans are exported. `heldWorkspaces`: suspended workspaces, whose runs
   * take no step.
   */
  constructor(
    app: App,
    options: {
      hostId?: string | null;
      pauseMs?: number;
      maxPerWorkspace?: number;
      eraseEveryMs?: number;
      gatherMs?: number;
      heldWorkspaces?: () => readonly string[];
    } = {},
  ) {
    this.#app = app;
    this.#eraseEveryMs = options.eraseEveryMs ?? 60_000;
    this.#hostId = options.hostId ?? null;
    this.#watcher = new Watcher(watchEveryMs, (ids) => statesOf(app.db, ids));
    this.#pauseMs = options.pauseMs ?? 500;
    this.#gatherMs = options.gatherMs;
    this.#maxPerWorkspace = options.maxPerWorkspace ?? maxPerWorkspace;
    this.#heldWorkspaces = options.heldWorkspaces ?? (() => []);
  }

  get processId(): string {
    return this.#app.jobs.processId;
  }

  /** Starts executing runs, beginning with orphans of dead processes. `api`: the server's own API for agents. */
  async start(api?: OwnApi): Promise<void> {
    this.#api = api;
    this.#tracing = openTracing(this.#app, this.#gatherMs);
    this.#fetch = modelFetch(parseOpenedHosts(this.#app.config.allowPrivateHosts));
    await this.#recover();
    await this.pollForOrphans();
    this.#polling = this.#keepPolling();
  }

  /** Stops executing runs. Active runs continue in another process from their last complete step. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    const all = [...this.#executing.values()];
    for (const { stop } of all) stop.abort(new RunInterrupted());
    await Promise.all([...all.map(({ done }) => done), this.#polling]);
    await this.#refilling;
    await this.#erasing;
    await this.#tracing?.close();
    await mcpConnections(this.#app).closeAll();
  }

  /**
   * Process that acquires a new run. `maxPerWorkspace` is 0 if this process has no free slot, so that the run waits.
   */
  get executor(): NewRun["executor"] {
    const { processId } = this;
    const hasPlace = this.#isRunning && this.#executing.size < maxConcurrent;
    return { processId, maxPerWorkspace: hasPlace ? this.#maxPerWorkspace : 0 };
  }

  get #isRunning(): boolean {
    return this.#fetch !== undefined && !this.#stopping.signal.aborted;
  }

  /** Excludes the run from polls until `commit` ends. Otherwise a poll could acquire the run without its context. */
  async guardCommit<T>(id: string, commit: () => Promise<T>): Promise<T> {
    this.#guarded.add(id);
    try {
      return await commit();
    } finally {
      this.#guarded.delete(id);
    }
  }

  /**
   * Executes a committed run. Before the start and after the stop of this executor, a poll acquires the run instead.
   * `acquired` is set if the insert assigned the run to this process.
   */
  submit(id: string, acquired?: AcquiredRun): void {
    if (!this.#fetch || !this.#isRunning) return;
    const held = this.#executing.get(id);
    if (held) {
      // The run was parked, and a person decided before this process released the run.
      held.isResubmitted = true;
      return;
    }
    if (this.#executing.size >= maxConcurrent) {
      this.#hasBacklog = true;
      return;
    }
    const stop = new AbortController();
    const done = this.#run(id, acquired, stop, this.#fetch)
      .catch((error: unknown) =>
        this.#app.log.error({ error, run: id }, "run interrupted; the next poll retries it"),
      )
      .finally(() => {
        const { isResubmitted: isAgain } = this.#executing.get(id)!;
        this.#executing.delete(id);
        this.notifyChanged(id);
        if (isAgain) this.submit(id);
      });
    this.#executing.set(id, { stop, done, isResubmitted: false, status: "running" });
  }

  /** Records that runs wait for their turn. Callers call this after the commit of such a run. */
  noteWaitingTurn(): void {
    this.#hasWaitingTurns = true;
  }

  async #startTurns(): Promise<void> {
    const { started, ended, areLeft } = await startTurns(this.#app, this.#heldWorkspaces());
    this.#hasWaitingTurns = areLeft;
    for (const id of started) this.submit(id);
    for (const id of ended) this.abort(id);
  }

  /** Notifies watchers of a commit. `status` is the run's status after the commit, if known. */
  notifyChanged(id: string, status?: RunStatus): void {
    const held = this.#executing.get(id);
    if (held) held.status = status;
    this.#watcher.notify(id, status);
  }

  /** Continues a run after an approval or a sign-in expired. If the run has ended, exports its trace. */
  async onWaitExpired(id: string): Promise<void> {
    await this.#exportTrace(id);
    this.submit(id);
    this.notifyChanged(id);
  }

  /** Aborts the execution of a run that another request ended. */
  abort(id: string): void {
    this.#executing.get(id)?.stop.abort(new LostRun());
    void this.#exportTrace(id);
    this.notifyChanged(id);
  }

  /** Watches a run until the reader ends the watch. A notification carries the run's status if it is known. */
  watch(id: string): Watch<RunStatus> {
    return this.#watcher.watch(id);
  }

  /** Resolves when the run has ended or waits for a person, or when the timeout expires. */
  async waitForOutcome(id: string, withinMs: number): Promise<void> {
    if (withinMs <= 0) return;
    const signal = AbortSignal.any([AbortSignal.timeout(Math.ceil(withinMs)), this.#stopping.signal]);
    const watch = this.watch(id);
    try {
      let told = this.#executing.get(id)?.status;
      while (!signal.aborted) {
        const news = watch.next(signal);
        const status = told ?? (await findState(this.#app.db, id))?.status;
        if (!status || isOver(status) || status === "pending_approval") return;
        told = await news;
      }
    } finally {
      watch.end();
    }
  }

  /** Acquires orphans and queued runs. Returns the number of acquired runs. */
  async pollForOrphans(): Promise<number> {
    const free = maxConcurrent - this.#executing.size;
    if (free <= 0) return 0;
    const ids = await findOrphans(this.#app.db, {
      processId: this.processId,
      hostId: this.#hostId,
      executing: [...this.#executing.keys(), ...this.#guarded],
      held: this.#heldWorkspaces(),
      limit: free,
      maxPerWorkspace: this.#maxPerWorkspace,
    });
    for (const id of ids) if (!this.#guarded.has(id)) this.submit(id);
    return ids.length;
  }

  async #refill(): Promise<void> {
    this.#hasBacklog = false;
    try {
      if ((await this.pollForOrphans()) > 0) this.#hasBacklog = true;
    } catch (error) {
      this.#app.log.warn({ error }, "poll for waiting runs failed");
    } finally {
      this.#refilling = undefined;
    }
  }

  async #keepPolling(): Promise<void> {
    const { signal } = this.#stopping;
    let erasedMs = 0;
    while (!signal.aborted) {
      await sleep(pollEveryMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      try {
        await this.#expire();
        await this.#recover();
        await endEphemeral(this.#app, this.#app.clock.now());
        await this.#startTurns();
        await this.pollForOrphans();
        if (performance.now() - erasedMs < this.#eraseEveryMs) continue;
        erasedMs = performance.now();
        // The erasure runs in parallel. Erasing an hour's texts takes a while, and approvals and orphans must not wait
        // for that.
        this.#erasing ??= this.#eraseExpired();
      } catch (error) {
        this.#app.log.warn({ error }, "poll for waiting runs failed");
      }
    }
  }

  async #eraseExpired(): Promise<void> {
    try {
      await stripExpiredTexts(this.#app, this.#app.clock.now(), this.#stopping.signal);
    } catch (error) {
      this.#app.log.warn({ error }, "erasing expired texts of runs failed");
    } finally {
      this.#erasing = undefined;
    }
  }

  /** Continues or ends runs with expired approvals or finished waits for a sign-in. */
  async #expire(): Promise<void> {
    const now = this.#app.clock.now();
    for (const id of await expireDue(this.#app, now)) await this.onWaitExpired(id);
    for (const id of await resolveWaits(this.#app, now)) await this.onWaitExpired(id);
  }

  /** Releases runs whose open call died with its process. The next poll acquires these runs. */
  async #recover(): Promise<void> {
    const executing = [...this.#executing.keys(), ...this.#guarded];
    const who = { processId: this.processId, hostId: this.#hostId, executing };
    for (const id of await recoverQuestions(this.#app, who)) this.notifyChanged(id);
  }

  async #run(
    id: string,
    acquired: AcquiredRun | undefined,
    stop: AbortController,
    fetch: Fetch,
  ): Promise<void> {
    const { db, clock } = this.#app;
    const held = this.#heldWorkspaces();
    const who = {
      processId: this.processId,
      hostId: this.#hostId,
      maxPerWorkspace: this.#maxPerWorkspace,
      held,
    };
    const taken = acquired?.row ?? (await acquireRun(db, id, who, clock.now()));
    if (!taken) {
      this.#hasBacklog = true;
      return;
    }
    const trace = this.#tracing?.of(taken);
    await passKillPoint("agent.run.taken");
    const claim = { id, attempt: taken.attempts };
    let isEnded = false;
    const writer = new RunWriter(this.#app, claim, {
      stored: ({ status }) => {
        // Parallel calls may be acknowledged in another order than their commits.
        isEnded ||= isOver(status);
        this.notifyChanged(id, status);
      },
      broken: (error) => stop.abort(error),
    });
    try {
      if (taken.attempts - taken.resumed > attemptsMax)
        throw new RunFailure("internal", `The run was executed ${attemptsMax} times without success.`);
      if (taken.attempts > 1) {
        await endTokensOf(db, id);
        clearActorCache(this.#app);
        // The call that the answer belongs to died with its process.
        await deleteContents(db, id);
      }
      await executeRun(this.#app, acquired ?? { row: taken }, {
        writer,
        stop,
        fetch: ownedFetch(fetch, taken.workspace_id),
        isSuspended: () => this.#heldWorkspaces().includes(taken.workspace_id),
        pauseMs: this.#pauseMs,
        api: this.#api,
        trace,
        traceparent: taken.traceparent,
        followed: { watch: () => this.watch(id), changed: () => this.notifyChanged(id) },
      });
    } catch (error) {
      await this.#afterFailure(error, taken, writer);
    } finally {
      await writer.close();
      if (isEnded) await this.#exportTrace(id);
      if (isEnded && this.#hasWaitingTurns && !this.#stopping.signal.aborted) await this.#startTurns();
      if (this.#hasBacklog && !this.#stopping.signal.aborted) this.#refilling ??= this.#refill();
    }
  }

  /** Exports the trace of an ended run, whichever process ended it. */
  async #exportTrace(id: string): Promise<void> {
    if (this.#tracing) await exportRootSpan(this.#app, this.#tracing, id);
  }

  async #afterFailure(error: unknown, run: RunRow, writer: RunWriter): Promise<void> {
    const { db, clock, log } = this.#app;
    if (error instanceof LostRun) return;
    if (error instanceof RunInterrupted) {
      const activeMs = await writer.close();
      return releaseRun(db, { id: run.id, attempt: run.attempts }, activeMs);
    }
    if (error instanceof ModelBusy) return this.#park(error, writer);
    // The next poll acquires the run again and continues from its last complete step.
    if (isTransient(error)) throw error;
    const failure = failureOf(error);
    if (failure.code === "internal") log.error({ error, run: run.id }, "run failed with an internal error");
    const { event, change } = buildFailure(failure, clock.now());
    await this.#commitLast(writer, event, change);
  }

  /**
   * Parks the run as a row until its model may be called again. After that, any process that polls executes the run.
   */
  #park({ step, until, waitMs }: ModelBusy, writer: RunWriter): Promise<void> {
    const data = { step, retry_at: until.toISOString() };
    const event = { type: "model.waiting", at: this.#app.clock.now(), data };
    const change = { status: "queued", process_id: null, retry_at: until, waitMs, isResumed: true } as const;
    return this.#commitLast(writer, event, change);
  }

  async #commitLast(writer: RunWriter, event: NewEvent, change: RunChange): Promise<void> {
    try {
      await writer.commit([event], change);
    } catch (error) {
      if (!(error instanceof LostRun)) throw error;
    }
  }
}
