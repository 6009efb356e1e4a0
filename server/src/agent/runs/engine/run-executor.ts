/**
 * Runs, carried out. Each is a row until it ends; this holds those that this process carries out, wakes whoever
 * follows one when something of it was stored, and looks, every second, for runs whose process is gone. A run that is
 * taken over gets a new number, and what the earlier holder still writes is refused. One that waits for a person is
 * held by nobody.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { App } from "#app.ts";
import { isTransient } from "#db/transient-errors.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { type Watch, Watcher } from "#lib/watcher.ts";
import { expireDue } from "#agent/approvals/expire.ts";
import { resolveWaits } from "#agent/oauth/waits/resolve.ts";
import { mcpConnections } from "#agent/mcp/connections.ts";
import { type Fetch, modelFetch, ownedFetch } from "#agent/models/fetch.ts";
import { clearActorCache } from "#accounts/find-actor.ts";
import { endTokensOf } from "#accounts/tokens/run-tokens.ts";
import { endEphemeral } from "#agent/sessions/expire.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import { openTracing, type Tracing } from "#agent/tracing/tracing.ts";
import type { Beginning } from "../api/insert-run.ts";
import { carryOut } from "./execute-run.ts";
import { failed } from "../journal/end-run.ts";
import { failureOf, ModelBusy, RunFailure } from "./run-failure.ts";
import { forgetOutputs } from "../journal/strip-texts.ts";
import type { NewEvent, RunChange } from "../journal/journal.ts";
import { findOrphans, findState, releaseRun, type RunRow, statesOf, takeRun } from "../store.ts";
import { isOver, type RunStatus } from "../states.ts";
import { traceEnded } from "./trace-run.ts";
import { Interrupted } from "./run-context.ts";
import { startTurns } from "./turns.ts";
import { recoverQuestions } from "./questions.ts";
import { LostRun, RunWriter } from "../journal/event-writer.ts";
import type { Carried } from "./run-context.ts";

/** Each is a connection to a model and some kilobytes; what is more waits in its row. */
const atOnceMax = 1_000;
/** Of one workspace: whoever has much to do, or tools that take a day, keeps nobody else waiting. */
const ofOneMax = 50;
const lookEveryMs = 1_000;
/** Interval of polling followed runs for changes by other processes. */
const followMs = 500;
/** One that has seen so many processes go is the likelier cause of that. */
const attemptsMax = 10;

export class AgentRuns {
  readonly #app: App;
  readonly #hostId: string | null;
  readonly #pauseMs: number;
  readonly #ofOneMax: number;
  readonly #heldWorkspaces: () => readonly string[];
  readonly #gatherMs: number | undefined;
  readonly #carriedOut = new Map<
    string,
    {
      stop: AbortController;
      done: Promise<void>;
      isAgain: boolean;
      /** Undefined where only its row knows: it was ended from outside. */
      status: RunStatus | undefined;
    }
  >();
  readonly #committing = new Set<string>();
  readonly #watcher: Watcher<RunStatus>;
  readonly #stopping = new AbortController();
  #fetch: Fetch | undefined;
  #api: OwnApi | undefined;
  #tracing: Tracing | undefined;
  #looking: Promise<void> | undefined;
  #forgetting: Promise<void> | undefined;
  readonly #forgetEveryMs: number;
  /** Some had no place: the next that is free is theirs at once. */
  #areLeft = false;
  #filling: Promise<void> | undefined;
  /** True if some runs may wait for their turn in a session. */
  #areTurnsLeft = true;

  /**
   * `hostId`: of whose earlier processes none lives. `pauseMs`: the first before a model is asked again. `ofOneMax`: runs
   * of one workspace at once. `forgetEveryMs`: between two looks for what runs said an hour ago. `gatherMs`: before what
   * traces tell is sent. `heldWorkspaces`: those that are suspended, whose runs take no step.
   */
  constructor(
    app: App,
    options: {
      hostId?: string | null;
      pauseMs?: number;
      ofOneMax?: number;
      forgetEveryMs?: number;
      gatherMs?: number;
      heldWorkspaces?: () => readonly string[];
    } = {},
  ) {
    this.#app = app;
    this.#forgetEveryMs = options.forgetEveryMs ?? 60_000;
    this.#hostId = options.hostId ?? null;
    this.#watcher = new Watcher(followMs, (ids) => statesOf(app.db, ids));
    this.#pauseMs = options.pauseMs ?? 500;
    this.#gatherMs = options.gatherMs;
    this.#ofOneMax = options.ofOneMax ?? ofOneMax;
    this.#heldWorkspaces = options.heldWorkspaces ?? (() => []);
  }

  get processId(): string {
    return this.#app.jobs.processId;
  }

  /** From here on runs are carried out, those of processes that are gone first. `api`: what agents act by. */
  async start(api?: OwnApi): Promise<void> {
    this.#api = api;
    this.#tracing = openTracing(this.#app, this.#gatherMs);
    this.#fetch = modelFetch(parseOpenedHosts(this.#app.config.allowPrivateHosts));
    await this.#recover();
    await this.look();
    this.#looking = this.#keepLooking();
  }

  /** What is under way is left to another process, from its last whole step. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    const all = [...this.#carriedOut.values()];
    for (const { stop } of all) stop.abort(new Interrupted());
    await Promise.all([...all.map(({ done }) => done), this.#looking]);
    await this.#filling;
    await this.#forgetting;
    await this.#tracing?.close();
    await mcpConnections(this.#app).closeAll();
  }

  /** Who takes a run that begins now: nobody where it could not be carried out here at once. */
  get taker(): Beginning["taker"] {
    const { processId } = this;
    const hasPlace = this.#isAtWork && this.#carriedOut.size < atOnceMax;
    return { processId, ofOneMax: hasPlace ? this.#ofOneMax : 0 };
  }

  get #isAtWork(): boolean {
    return this.#fetch !== undefined && !this.#stopping.signal.aborted;
  }

  /** What commits a run of this id: until it has, no look takes the run from who knows what it begins with. */
  async committing<T>(id: string, commit: () => Promise<T>): Promise<T> {
    this.#committing.add(id);
    try {
      return await commit();
    } finally {
      this.#committing.delete(id);
    }
  }

  /**
   * A run that was committed just now; before the start, and after the stop, it is left for a look. `carried`: it was
   * taken for this process as it was committed.
   */
  begin(id: string, carried?: Carried): void {
    if (!this.#fetch || !this.#isAtWork) return;
    const held = this.#carriedOut.get(id);
    if (held) {
      // It began to wait, and somebody decided before it was let go of here.
      held.isAgain = true;
      return;
    }
    if (this.#carriedOut.size >= atOnceMax) {
      this.#areLeft = true;
      return;
    }
    const stop = new AbortController();
    const done = this.#run(id, carried, stop, this.#fetch)
      .catch((error: unknown) => this.#app.log.error({ error, run: id }, "a run was left for another try"))
      .finally(() => {
        const { isAgain } = this.#carriedOut.get(id)!;
        this.#carriedOut.delete(id);
        this.changed(id);
        if (isAgain) this.begin(id);
      });
    this.#carriedOut.set(id, { stop, done, isAgain: false, status: "running" });
  }

  /** Call after the commit of a run that waits for its turn. */
  expectTurn(): void {
    this.#areTurnsLeft = true;
  }

  async #startTurns(): Promise<void> {
    const { started, ended, areLeft } = await startTurns(this.#app, this.#heldWorkspaces());
    this.#areTurnsLeft = areLeft;
    for (const id of started) this.begin(id);
    for (const id of ended) this.drop(id);
  }

  /** Something of the run was committed: whoever follows it looks. `status`: what it is since then, where that is known. */
  changed(id: string, status?: RunStatus): void {
    const held = this.#carriedOut.get(id);
    if (held) held.status = status;
    this.#watcher.notify(id, status);
  }

  /** Nobody decided in time: the run goes on, or is over. */
  async lapsed(id: string): Promise<void> {
    await this.#traced(id);
    this.begin(id);
    this.changed(id);
  }

  /** Stops the work on a run that was ended from outside. */
  drop(id: string): void {
    this.#carriedOut.get(id)?.stop.abort(new LostRun());
    void this.#traced(id);
    this.changed(id);
  }

  /** Watches a run until the reader ends the watch. A notification carries the run's status if it is known. */
  watch(id: string): Watch<RunStatus> {
    return this.#watcher.watch(id);
  }

  /** Resolves when the run is over or waits for a person, or the time is up. */
  async settled(id: string, withinMs: number): Promise<void> {
    if (withinMs <= 0) return;
    const signal = AbortSignal.any([AbortSignal.timeout(Math.ceil(withinMs)), this.#stopping.signal]);
    const watch = this.watch(id);
    try {
      let told = this.#carriedOut.get(id)?.status;
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

  /** Takes runs that nobody carries out; answers how many. */
  async look(): Promise<number> {
    const free = atOnceMax - this.#carriedOut.size;
    if (free <= 0) return 0;
    const ids = await findOrphans(this.#app.db, {
      processId: this.processId,
      hostId: this.#hostId,
      carriedOut: [...this.#carriedOut.keys(), ...this.#committing],
      held: this.#heldWorkspaces(),
      limit: free,
      ofOneMax: this.#ofOneMax,
    });
    for (const id of ids) if (!this.#committing.has(id)) this.begin(id);
    return ids.length;
  }

  async #fill(): Promise<void> {
    this.#areLeft = false;
    try {
      if ((await this.look()) > 0) this.#areLeft = true;
    } catch (error) {
      this.#app.log.warn({ error }, "runs that wait were not looked for");
    } finally {
      this.#filling = undefined;
    }
  }

  async #keepLooking(): Promise<void> {
    const { signal } = this.#stopping;
    let forgottenMs = 0;
    while (!signal.aborted) {
      await sleep(lookEveryMs, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return;
      try {
        await this.#expire();
        await this.#recover();
        await endEphemeral(this.#app, this.#app.clock.now());
        await this.#startTurns();
        await this.look();
        if (performance.now() - forgottenMs < this.#forgetEveryMs) continue;
        forgottenMs = performance.now();
        // Beside this: an hour's words of many runs take a while, and approvals and lost runs do not wait for them.
        this.#forgetting ??= this.#forget();
      } catch (error) {
        this.#app.log.warn({ error }, "runs that wait were not looked for");
      }
    }
  }

  async #forget(): Promise<void> {
    try {
      await forgetOutputs(this.#app, this.#app.clock.now(), this.#stopping.signal);
    } catch (error) {
      this.#app.log.warn({ error }, "what runs said is kept past its hour");
    } finally {
      this.#forgetting = undefined;
    }
  }

  /** Continues or ends runs whose approvals are late, and runs whose wait for a sign-in is over. */
  async #expire(): Promise<void> {
    const now = this.#app.clock.now();
    for (const id of await expireDue(this.#app, now)) await this.lapsed(id);
    for (const id of await resolveWaits(this.#app, now)) await this.lapsed(id);
  }

  /** Leaves runs whose open call died with its process to the next look. */
  async #recover(): Promise<void> {
    const carriedOut = [...this.#carriedOut.keys(), ...this.#committing];
    const who = { processId: this.processId, hostId: this.#hostId, carriedOut };
    for (const id of await recoverQuestions(this.#app, who)) this.changed(id);
  }

  async #run(id: string, carried: Carried | undefined, stop: AbortController, fetch: Fetch): Promise<void> {
    const { db, clock } = this.#app;
    const held = this.#heldWorkspaces();
    const who = { processId: this.processId, hostId: this.#hostId, ofOneMax: this.#ofOneMax, held };
    const taken = carried?.row ?? (await takeRun(db, id, who, clock.now()));
    if (!taken) {
      this.#areLeft = true;
      return;
    }
    const trace = this.#tracing?.of(taken);
    await passKillPoint("agent.run.taken");
    const claim = { id, attempt: taken.attempts };
    let isEnded = false;
    const writer = new RunWriter(this.#app, claim, {
      stored: ({ status }) => {
        // Commits of calls beside one another may be answered in another order than they were made in.
        isEnded ||= isOver(status);
        this.changed(id, status);
      },
      broken: (error) => stop.abort(error),
    });
    try {
      if (taken.attempts - taken.resumed > attemptsMax)
        throw new RunFailure("internal", "It was given up after many tries.");
      if (taken.attempts > 1) {
        await endTokensOf(db, id);
        clearActorCache(this.#app);
      }
      await carryOut(this.#app, carried ?? { row: taken }, {
        writer,
        stop,
        fetch: ownedFetch(fetch, taken.workspace_id),
        isHeld: () => this.#heldWorkspaces().includes(taken.workspace_id),
        pauseMs: this.#pauseMs,
        api: this.#api,
        trace,
        traceparent: taken.traceparent,
        followed: { watch: () => this.watch(id), changed: () => this.changed(id) },
      });
    } catch (error) {
      await this.#afterFailure(error, taken, writer);
    } finally {
      await writer.close();
      if (isEnded) await this.#traced(id);
      if (isEnded && this.#areTurnsLeft && !this.#stopping.signal.aborted) await this.#startTurns();
      if (this.#areLeft && !this.#stopping.signal.aborted) this.#filling ??= this.#fill();
    }
  }

  /** Where the run is over, by whoever committed its end: its trace is whole. */
  async #traced(id: string): Promise<void> {
    if (this.#tracing) await traceEnded(this.#app, this.#tracing, id);
  }

  async #afterFailure(error: unknown, run: RunRow, writer: RunWriter): Promise<void> {
    const { db, clock, log } = this.#app;
    if (error instanceof LostRun) return;
    if (error instanceof Interrupted) {
      const activeMs = await writer.close();
      return releaseRun(db, { id: run.id, attempt: run.attempts }, activeMs);
    }
    if (error instanceof ModelBusy) return this.#park(error, writer);
    // The next look takes it up again, from its last whole step.
    if (isTransient(error)) throw error;
    const failure = failureOf(error);
    if (failure.code === "internal") log.error({ error, run: run.id }, "a run failed by our fault");
    const { event, change } = failed(failure, clock.now());
    await this.#commitLast(writer, event, change);
  }

  /** Parks the run as a row until its model may be called again. Any process that polls then executes it. */
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
