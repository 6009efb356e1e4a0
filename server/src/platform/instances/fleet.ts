/**
 * The instances of one function, and their requests. A request gets a slot on a running instance. Without a free slot
 * the request waits, its body unread, while an instance is woken or started. While all slots are in use, more instances
 * start, up to the plan's limit. Superfluous instances end. The last instance is frozen, and later stored on disk.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { functionBusy, functionNotDeployed, functionUnavailable, HandlerFailed } from "./errors.ts";
import { Instance, type Needs, type ProcessEnd } from "./instance.ts";
import { concurrency, environmentOf, isStale, maxInstances, type Launch, type Runnable } from "./launch.ts";
import type { InstanceRow, ServedRow } from "./store.ts";

/** A slot on an instance, held until its release. */
export interface Lease {
  machine: string;
  port: number;
  /** Timeout of the request in the instance's program. */
  timeoutMs: number;
  /** `coldStart`: the request waited for a new instance. `wakeMs`: milliseconds that a wake of any kind took. */
  coldStart: boolean;
  wakeMs: number | null;
  release(): void;
  /**
   * Reports that the connection failed, or closed without a response. Resolves when the instance is known to have
   * ended, or to have been only busy.
   */
  reportGone(): Promise<void>;
  /** Reports that the program exceeded its own timeout. The instance is then ended. */
  reportStuck(): void;
}

export interface FleetContext {
  app: Needs;
  launch(version: Runnable): Promise<Launch>;
  woke(functionId: string, seen: { ms: number; isCold: boolean }): void;
  ranOutOfMemory(fleet: Fleet): void;
  /** Starts work in the background. Only the shutdown of the server waits for the work. */
  inBackground(whatFailed: string, work: () => Promise<void>): void;
}

interface Waiter {
  begun: number;
  isCold: boolean;
  take(lease: Lease): void;
  fail(error: unknown): void;
}

/** Longest wait of a request for an instance, in milliseconds. */
const waitMs = 30_000;
/**
 * Wait of a request after which another instance starts. A slot that becomes free earlier is faster than a new
 * instance.
 */
const scaleAfterMs = 500;
/** Delay before another instance is started, after one had no capacity or failed to start. */
const scaleAgainMs = 5_000;
/** Delay before a busy stale instance is replaced, after an earlier replacement failed to start. */
const renewAgainMs = 60_000;
/** Idle time after which additional instances end. */
const calmMs = 30_000;
/** Time after which a proved instance ends, if its version did not become live. */
const provedMs = 120_000;
/** Time after which a busy process accepts connections again. */
const busyMs = 50;
/** Longest wait for the last output of an ended process. */
const lastOutputMs = 1_000;
/** Time after the timeout of its requests in flight at which an instance is ended. */
const graceMs = 5_000;

export class Fleet {
  row: ServedRow;
  /** Live version of the function; null if there is none. */
  live: Runnable | null;
  readonly instances: Instance[] = [];
  readonly #context: FleetContext;
  readonly #waiting = new Set<Waiter>();
  readonly #retired = new Map<Instance, number>();
  /** Instances that prove a version. These instances get no request before the version is live. */
  readonly #proofs = new Set<Instance>();
  #starting: Promise<void> | undefined;
  #scaling: NodeJS.Timeout | undefined;
  #scaleNotBefore = 0;
  #renewNotBefore = 0;
  #isClosed = false;

  constructor(context: FleetContext, row: ServedRow, live: Runnable | null) {
    this.#context = context;
    this.row = row;
    this.live = live;
  }

  get id(): string {
    return this.row.id;
  }

  /**
   * Resolves to a slot. Rejects with `function_not_deployed` or `function_busy`, or with `function_unavailable` if no
   * instance starts.
   */
  acquire(signal: AbortSignal): Promise<Lease> {
    if (this.live === null || this.#isClosed) return Promise.reject(functionNotDeployed());
    const free = this.#waiting.size === 0 ? this.#free() : undefined;
    if (free) return Promise.resolve(this.#lease(free));
    const { promise, resolve, reject } = Promise.withResolvers<Lease>();
    const onAbort = () => waiter.fail(signal.reason);
    const late = setTimeout(() => waiter.fail(functionBusy()), waitMs);
    const over = () => {
      this.#waiting.delete(waiter);
      clearTimeout(late);
      signal.removeEventListener("abort", onAbort);
    };
    const waiter: Waiter = {
      begun: performance.now(),
      isCold: false,
      take: (lease) => {
        over();
        resolve(lease);
      },
      fail: (error) => {
        over();
        reject(error);
      },
    };
    this.#waiting.add(waiter);
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    this.#provide();
    return promise;
  }

  /**
   * Starts an instance of the version. Resolves when its process runs. After a failure, its machine and row are
   * removed.
   */
  async startInstance(version: Runnable): Promise<Instance> {
    const instance = await this.#made(version);
    this.instances.push(instance);
    try {
      await instance.start(this.row);
      return instance;
    } catch (error) {
      await this.#end(instance);
      throw error;
    }
  }

  /** Returns an instance of a version that is not live yet. An instance of an earlier attempt is used if it runs. */
  async prove(version: Runnable): Promise<Instance> {
    const there = this.instances.find(
      ({ version: { id }, state }) => id === version.id && state === "running",
    );
    const instance = there ?? (await this.startInstance(version));
    if (!this.#isServing(instance)) this.#proofs.add(instance);
    return instance;
  }

  /** Adopts an instance that an earlier server left. `machine` is the id of its machine. */
  async adopt(version: Runnable, row: InstanceRow, machine: string | null): Promise<void> {
    const instance = await this.#made(version, row);
    this.instances.push(instance);
    instance.isStale = isStale(this.#context.app, row, environmentOf(this.#context.app, this.row));
    await instance.adopt(machine);
  }

  /** Applies a changed row, and another live version if there is one. */
  changed(row: ServedRow, live: Runnable | null): void {
    this.row = row;
    this.live = live;
    for (const proof of this.#proofs) if (this.#isServing(proof)) this.#proofs.delete(proof);
    const { app } = this.#context;
    const env = environmentOf(app, row);
    for (const instance of this.instances) {
      if (instance.state === "starting" || instance.state === "ending") continue;
      instance.isStale = isStale(app, { id: instance.id, env_sealed: instance.envSealed }, env);
      if (!instance.isStale && this.#isServing(instance)) this.#retired.delete(instance);
    }
    this.#renewNotBefore = 0;
    this.maintain();
  }

  /** Freezes idle instances, and ends superfluous ones. Runs every second. */
  maintain(): void {
    const now = this.#now();
    for (const instance of this.instances.slice()) {
      if (instance.state === "starting" || instance.state === "ending") continue;
      if (!this.#isServing(instance)) this.#retire(instance, now);
      else if (instance.isStale) this.#renew(instance, now);
      else this.#rest(instance, now);
    }
  }

  /** Returns the instance that was frozen first; undefined if none is frozen. */
  longestFrozen(): Instance | undefined {
    return this.instances
      .filter(({ state, machine }) => state === "frozen" && machine !== null)
      .toSorted((one, other) => one.usedAt - other.usedAt)[0];
  }

  /** Stores an instance on disk. If that fails, the instance is ended. */
  async store(instance: Instance): Promise<void> {
    try {
      await instance.store();
    } catch (error) {
      const { log } = this.#context.app;
      log.info(
        { instance: instance.id, err: error },
        "a function could not be stored on disk; its next start is cold",
      );
      await this.#end(instance);
    }
  }

  /** Called after an instance's machine and row were deleted. */
  lost(instance: Instance, message: string): void {
    this.#forget(instance);
    this.#context.inBackground("the end of a function's process could not be logged", async () => {
      await instance.lost();
      await instance.writeLog(message);
    });
    this.#provide();
  }

  /** Refuses requests from now on, and ends all instances. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const waiter of this.#waiting) waiter.fail(functionNotDeployed());
    await this.#starting;
    await Promise.all(this.instances.slice().map((instance) => this.#end(instance)));
  }

  /** Stops the supervision at the shutdown of the server. Instances keep running. */
  async detach(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#scaling);
    for (const waiter of this.#waiting) waiter.fail(functionBusy());
    await Promise.all(this.instances.map((instance) => instance.close()));
  }

  async #made(version: Runnable, row?: InstanceRow): Promise<Instance> {
    const { app } = this.#context;
    return new Instance({
      app,
      version,
      launch: await this.#context.launch(version),
      ring: app.machines.logs.of(this.id),
      ...(row ? { row } : {}),
      ended: (ended, end) => this.#onProcessEnd(ended, end),
    });
  }

  #isServing({ version, state }: Instance): boolean {
    return version.id === this.live?.id && state !== "ending";
  }

  /**
   * Returns the first instance with a free slot, so that later ones become idle. A stale instance is used until it is
   * replaced.
   */
  #free(): Instance | undefined {
    const free = this.instances.filter(
      (instance) =>
        instance.state === "running" &&
        this.#isServing(instance) &&
        !this.#retired.has(instance) &&
        instance.inFlight < concurrency[instance.version.runtime],
    );
    return free.find(({ isStale }) => !isStale) ?? free[0];
  }

  #lease(instance: Instance, waiter?: Waiter): Lease {
    const { machine } = instance;
    if (machine === null) throw new Error("a running instance has a machine");
    instance.inFlight += 1;
    let isOver = false;
    return {
      machine,
      port: instance.launch.port,
      timeoutMs: instance.timeoutMs,
      coldStart: waiter?.isCold ?? false,
      wakeMs: waiter === undefined ? null : performance.now() - waiter.begun,
      release: () => {
        if (isOver) return;
        isOver = true;
        instance.inFlight -= 1;
        instance.usedAt = this.#now();
        this.#dispatch();
      },
      reportGone: () => this.#verifyAlive(instance),
      reportStuck: () => {
        if (instance.state === "ending" || this.#isSuspended(instance)) return;
        this.#endLater(
          instance,
          "The function did not respond within its timeout, so its process was ended.",
        );
      },
    };
  }

  #dispatch(): void {
    for (const waiter of this.#waiting) {
      const free = this.#free();
      if (!free) break;
      waiter.take(this.#lease(free, waiter));
    }
  }

  /** Wakes or starts instances for waiting requests. */
  #provide(): void {
    if (this.#waiting.size === 0 || this.#starting || this.#isClosed || this.live === null) return;
    const serving = this.instances.filter((instance) => this.#isServing(instance) && !instance.isStale);
    const resting =
      serving.find(({ state }) => state === "frozen") ?? serving.find(({ state }) => state === "asleep");
    if (resting) return this.#runStart(() => this.#wake(resting));
    const working = serving.filter(({ state }) => state === "running" || state === "starting");
    if (working.length === 0) return this.#runStart(() => this.#coldStart({ isFirst: true }));
    if (working.length >= maxInstances[this.row.plan] || performance.now() < this.#scaleNotBefore) return;
    this.#scaling ??= setTimeout(() => {
      this.#scaling = undefined;
      const [first] = this.#waiting;
      if (first === undefined || this.#starting) return;
      // Slots become free often, so the first request may have waited only a short time.
      if (performance.now() - first.begun < scaleAfterMs) return this.#provide();
      this.#runStart(() => this.#addInstance());
    }, scaleAfterMs).unref();
  }

  #runStart(work: () => Promise<void>): void {
    this.#starting = work()
      .catch((error: unknown) => {
        const told = explain(error);
        for (const waiter of this.#waiting) waiter.fail(told);
        this.#context.app.log.warn({ function: this.id, err: error }, "a function could not be started");
        // A handler that fails to load has already logged its reason.
        return error instanceof HandlerFailed ? undefined : this.#writeLog(told.detail);
      })
      .catch((error: unknown) => {
        this.#context.app.log.info(
          { function: this.id, err: error },
          "a function's log could not be written",
        );
      })
      .finally(() => {
        this.#starting = undefined;
        this.#dispatch();
        this.#provide();
      });
  }

  async #wake(instance: Instance): Promise<void> {
    const begun = performance.now();
    try {
      await instance.wake();
      this.#context.woke(this.id, { ms: performance.now() - begun, isCold: false });
    } catch (error) {
      const { log } = this.#context.app;
      log.warn(
        { instance: instance.id, err: error },
        "a function could not be woken; its next start is cold",
      );
      await instance.writeLog("The function could not be woken from its memory, and is started again.");
      await this.#end(instance);
      await this.#coldStart({ isFirst: true });
    }
  }

  async #coldStart({ isFirst }: { isFirst: boolean }): Promise<void> {
    if (this.live === null) throw functionNotDeployed();
    const begun = performance.now();
    await this.startInstance(this.live);
    if (isFirst) for (const waiter of this.#waiting) waiter.isCold = true;
    this.#context.woke(this.id, { ms: performance.now() - begun, isCold: true });
  }

  /**
   * Starts an additional instance. If that fails, running instances continue to serve, and requests continue to wait.
   */
  async #addInstance(): Promise<void> {
    try {
      await this.#coldStart({ isFirst: false });
    } catch (error) {
      this.#scaleNotBefore = performance.now() + scaleAgainMs;
      this.#context.app.log.info({ function: this.id, err: error }, "another instance could not be started");
    }
  }

  #rest(instance: Instance, now: number): void {
    const idleMs = now - instance.usedAt;
    const idleTimeoutMs = this.row.idle_timeout_seconds * 1000;
    if (instance.state === "frozen") {
      if (idleMs < this.#context.app.config.functionFrozenMinutes * 60_000) return;
      this.#context.inBackground("a function could not be stored on disk", () => this.store(instance));
    } else if (instance.state === "running" && instance.isQuiet) {
      const isFirst = this.instances.find((one) => this.#isServing(one) && !one.isStale) === instance;
      if (!isFirst && idleMs >= Math.min(calmMs, idleTimeoutMs)) this.#endLater(instance);
      else if (isFirst && idleMs >= idleTimeoutMs) {
        this.#context.inBackground("a function could not be frozen", async () => {
          await instance.freeze().catch(async (error: unknown) => {
            await this.#end(instance);
            throw error;
          });
        });
      }
    }
  }

  /** Replaces a stale instance. If the instance is always busy, another one starts first. */
  #renew(instance: Instance, now: number): void {
    if (instance.isQuiet) return this.#endLater(instance);
    const isReplaced = this.instances.some(
      (one) => one.state === "running" && this.#isServing(one) && !one.isStale,
    );
    if (isReplaced) return this.#retire(instance, now);
    if (this.#starting || this.#isClosed || performance.now() < this.#renewNotBefore) return;
    this.#renewNotBefore = performance.now() + renewAgainMs;
    this.#runStart(() => this.#addInstance());
  }

  /** Sends no more requests to the instance, and ends it after its requests in flight. */
  #retire(instance: Instance, now: number): void {
    if (this.#proofs.has(instance) && now - instance.usedAt < provedMs) return;
    const since = this.#retired.get(instance) ?? now;
    this.#retired.set(instance, since);
    if (instance.isQuiet || now - since > instance.timeoutMs + graceMs) this.#endLater(instance);
  }

  /**
   * True if the instance's machine is frozen by a suspension. Until the suspension ends, the instance does not respond.
   */
  #isSuspended({ machine }: Instance): boolean {
    return machine !== null && this.#context.app.machines.suspension.holds(machine);
  }

  #onProcessEnd(instance: Instance, { message, isOutOfMemory }: ProcessEnd): void {
    if (isOutOfMemory) this.#context.ranOutOfMemory(this);
    if (instance.state === "starting" || instance.state === "ending") return;
    this.#endLater(instance, message);
  }

  /**
   * Checks an instance that refused a connection. The instance is removed only if its process has ended, because other
   * requests may be in flight.
   */
  async #verifyAlive(instance: Instance): Promise<void> {
    if (instance.state !== "running" || this.#isSuspended(instance)) return;
    if (await instance.isAlive()) {
      await sleep(busyMs);
      // A process that ends closes its connections a moment before, so the check is repeated.
      if (await instance.isAlive()) return;
    }
    if (instance.state !== "running" || this.#isSuspended(instance)) return;
    instance.state = "ending";
    // The process's last output is still being read.
    this.#context.inBackground("an instance of a function could not be ended yet", async () => {
      await instance.writeLog(
        (await instance.describeEnd(lastOutputMs)) ?? "The function's process does not listen any more.",
      );
      await this.#end(instance);
    });
  }

  #endLater(instance: Instance, message?: string): void {
    instance.state = "ending";
    this.#context.inBackground("an instance of a function could not be ended yet", async () => {
      if (message !== undefined) await instance.writeLog(message);
      await this.#end(instance);
    });
    if (message !== undefined) this.#provide();
  }

  async #end(instance: Instance): Promise<void> {
    this.#forget(instance);
    await instance.end();
  }

  #forget(instance: Instance): void {
    const at = this.instances.indexOf(instance);
    if (at >= 0) this.instances.splice(at, 1);
    this.#retired.delete(instance);
    this.#proofs.delete(instance);
  }

  async #writeLog(text: string): Promise<void> {
    const deployment = this.live?.id ?? "";
    await this.#context.app.machines.logs
      .of(this.id)
      .append([{ at: this.#now(), stream: "system", text, deployment }]);
  }

  #now(): number {
    return this.#context.app.clock.now().getTime();
  }
}

/** Returns the error for the caller. The function's logs contain the details for the owner. */
function explain(error: unknown): DomainError {
  if (error instanceof HandlerFailed) return functionUnavailable("its handler does not load.", error);
  return error instanceof DomainError ? error : functionUnavailable("its machine did not start.", error);
}
