/**
 * The instances of one function, and who is let to them. A request gets a place on an instance that runs; where none
 * has one it waits, with nothing of it read yet, while an instance is woken or started: one at a time, however many
 * wait. More are started while those that run are at their bound, up to what the plan allows; what is not needed any
 * more ends again, and the last one is held, and then written to disk.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { DomainError } from "#lib/errors.ts";
import { functionBusy, functionNotDeployed, functionUnavailable, HandlerFailed } from "./errors.ts";
import { Instance, type Needs, type ProcessEnd } from "./instance.ts";
import { concurrency, environmentOf, isStale, mostInstances, type Launch, type Runnable } from "./launch.ts";
import type { InstanceRow, ServedRow } from "./store.ts";

/** A place on an instance, until it is left. */
export interface Lease {
  machine: string;
  port: number;
  /** How long its program takes for one request. */
  timeoutMs: number;
  /** Somebody waited for a start from nothing; for a wake of whatever kind, what that took. */
  coldStart: boolean;
  wakeMs: number | null;
  release(): void;
  /** Nothing could be sent to it, or no answer came. Settles once it is known to be gone, or to have been too busy for that. */
  reportGone(): Promise<void>;
  /** It has not answered in its time, and its program did not see to it: the instance is ended. */
  reportStuck(): void;
}

export interface Around {
  app: Needs;
  launch(version: Runnable): Promise<Launch>;
  woke(functionId: string, seen: { ms: number; isCold: boolean }): void;
  ranOutOfMemory(fleet: Fleet): void;
  /** Work that nobody waits for but the end of the server. */
  inBackground(whatFailed: string, work: () => Promise<void>): void;
}

interface Waiter {
  begun: number;
  isCold: boolean;
  take(lease: Lease): void;
  fail(error: unknown): void;
}

/** How long a request waits for an instance. */
const waitMs = 30_000;
/** A place that comes free within this is sooner there than another instance. */
const scaleAfterMs = 500;
/** Another instance did not fit, or did not start: no sooner than this is another one tried. */
const scaleAgainMs = 5_000;
/** What is to take the place of one that always has something to do did not start: it goes on for so long at least. */
const renewAgainMs = 60_000;
/** What runs beside the first goes after this, where nobody needs it. */
const calmMs = 30_000;
/** One that was proved and never went live. */
const provedMs = 120_000;
/** One that has no ear for a new connection has one after this. */
const busyMs = 50;
/** What a process that ended has said is here by then. */
const lastWordsMs = 1_000;
/** Of its time, for an answer that is under way. */
const graceMs = 5_000;

export class Fleet {
  row: ServedRow;
  /** What is served. */
  live: Runnable | null;
  readonly instances: Instance[] = [];
  readonly #around: Around;
  readonly #waiting = new Set<Waiter>();
  readonly #retired = new Map<Instance, number>();
  /** Started to see whether they do; nobody is let to them before their version is live. */
  readonly #proofs = new Set<Instance>();
  #bringing: Promise<void> | undefined;
  #scaling: NodeJS.Timeout | undefined;
  #scaleNotBefore = 0;
  #renewNotBefore = 0;
  #isClosed = false;

  constructor(around: Around, row: ServedRow, live: Runnable | null) {
    this.#around = around;
    this.row = row;
    this.live = live;
  }

  get id(): string {
    return this.row.id;
  }

  /** Fails with `function_not_deployed`, `function_busy`, and `function_unavailable` where it does not start. */
  enter(signal: AbortSignal): Promise<Lease> {
    if (this.live === null || this.#isClosed) return Promise.reject(functionNotDeployed());
    const free = this.#waiting.size === 0 ? this.#free() : undefined;
    if (free) return Promise.resolve(this.#lease(free));
    const { promise, resolve, reject } = Promise.withResolvers<Lease>();
    const left = () => waiter.fail(signal.reason);
    const late = setTimeout(() => waiter.fail(functionBusy()), waitMs);
    const over = () => {
      this.#waiting.delete(waiter);
      clearTimeout(late);
      signal.removeEventListener("abort", left);
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
    signal.addEventListener("abort", left, { once: true });
    if (signal.aborted) left();
    this.#provide();
    return promise;
  }

  /** A new instance of that version; it runs when this settles, and nothing of it is left where it fails. */
  async begin(version: Runnable): Promise<Instance> {
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

  /** One of a version that is not live yet; there from an earlier try where that came so far. */
  async prove(version: Runnable): Promise<Instance> {
    const there = this.instances.find(
      ({ version: { id }, state }) => id === version.id && state === "running",
    );
    const instance = there ?? (await this.begin(version));
    if (!this.#isServing(instance)) this.#proofs.add(instance);
    return instance;
  }

  /** What an earlier server left; `machine`: the one it has. */
  async adopt(version: Runnable, row: InstanceRow, machine: string | null): Promise<void> {
    const instance = await this.#made(version, row);
    this.instances.push(instance);
    instance.isStale = isStale(this.#around.app, row, environmentOf(this.#around.app, this.row));
    await instance.adopt(machine);
  }

  /** The row has changed, and what is live may have. */
  changed(row: ServedRow, live: Runnable | null): void {
    this.row = row;
    this.live = live;
    for (const proof of this.#proofs) if (this.#isServing(proof)) this.#proofs.delete(proof);
    const { app } = this.#around;
    const env = environmentOf(app, row);
    for (const instance of this.instances) {
      if (instance.state === "starting" || instance.state === "ending") continue;
      instance.isStale = isStale(app, { id: instance.id, env_sealed: instance.envSealed }, env);
      if (!instance.isStale && this.#isServing(instance)) this.#retired.delete(instance);
    }
    this.#renewNotBefore = 0;
    this.look();
  }

  /** Once a second: who is idle rests, who is not needed goes. */
  look(): void {
    const now = this.#now();
    for (const instance of this.instances.slice()) {
      if (instance.state === "starting" || instance.state === "ending") continue;
      if (!this.#isServing(instance)) this.#retire(instance, now);
      else if (instance.isStale) this.#renew(instance, now);
      else this.#rest(instance, now);
    }
  }

  /** The one that is held for longest; undefined where none is. */
  longestHeld(): Instance | undefined {
    return this.instances
      .filter(({ state, machine }) => state === "frozen" && machine !== null)
      .toSorted((one, other) => one.usedAt - other.usedAt)[0];
  }

  /** To disk; what cannot be written down ends. */
  async store(instance: Instance): Promise<void> {
    try {
      await instance.store();
    } catch (error) {
      const { log } = this.#around.app;
      log.info({ instance: instance.id, err: error }, "a function could not be put on disk; it starts anew");
      await this.#end(instance);
    }
  }

  /** Its machine is gone, and its row. */
  lost(instance: Instance, said: string): void {
    this.#forget(instance);
    this.#around.inBackground("a function's end could not be told", async () => {
      await instance.lost();
      await instance.say(said);
    });
    this.#provide();
  }

  /** Nobody is let in any more, and all instances end. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const waiter of this.#waiting) waiter.fail(functionNotDeployed());
    await this.#bringing;
    await Promise.all(this.instances.slice().map((instance) => this.#end(instance)));
  }

  /** The server ends; instances are left as they are. */
  async letGo(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#scaling);
    for (const waiter of this.#waiting) waiter.fail(functionBusy());
    await Promise.all(this.instances.map((instance) => instance.close()));
  }

  async #made(version: Runnable, row?: InstanceRow): Promise<Instance> {
    const { app } = this.#around;
    return new Instance({
      app,
      version,
      launch: await this.#around.launch(version),
      ring: app.machines.logs.of(this.id),
      ...(row ? { row } : {}),
      ended: (ended, end) => this.#died(ended, end),
    });
  }

  #isServing({ version, state }: Instance): boolean {
    return version.id === this.live?.id && state !== "ending";
  }

  /** The first that has a place: those behind it are the ones that come to rest. What was begun otherwise stands in until it is replaced. */
  #free(): Instance | undefined {
    const free = this.instances.filter(
      (instance) =>
        instance.state === "running" &&
        this.#isServing(instance) &&
        !this.#retired.has(instance) &&
        instance.underWay < concurrency[instance.version.runtime],
    );
    return free.find(({ isStale }) => !isStale) ?? free[0];
  }

  #lease(instance: Instance, waiter?: Waiter): Lease {
    const { machine } = instance;
    if (machine === null) throw new Error("an instance that runs has a machine");
    instance.underWay += 1;
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
        instance.underWay -= 1;
        instance.usedAt = this.#now();
        this.#dispatch();
      },
      reportGone: () => this.#doubted(instance),
      reportStuck: () => {
        if (instance.state === "ending" || this.#isSuspended(instance)) return;
        this.#endLater(instance, "It did not answer in its time, nor did the program that runs it: ended.");
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

  /** Sees to it that whoever waits will have a place. */
  #provide(): void {
    if (this.#waiting.size === 0 || this.#bringing || this.#isClosed || this.live === null) return;
    const serving = this.instances.filter((instance) => this.#isServing(instance) && !instance.isStale);
    const resting =
      serving.find(({ state }) => state === "frozen") ?? serving.find(({ state }) => state === "asleep");
    if (resting) return this.#bring(() => this.#wake(resting));
    const working = serving.filter(({ state }) => state === "running" || state === "starting");
    if (working.length === 0) return this.#bring(() => this.#coldStart({ isFirst: true }));
    if (working.length >= mostInstances[this.row.plan] || performance.now() < this.#scaleNotBefore) return;
    this.#scaling ??= setTimeout(() => {
      this.#scaling = undefined;
      const [first] = this.#waiting;
      if (first === undefined || this.#bringing) return;
      // Places come free all the time: who waits now may just have come.
      if (performance.now() - first.begun < scaleAfterMs) return this.#provide();
      this.#bring(() => this.#another());
    }, scaleAfterMs).unref();
  }

  #bring(work: () => Promise<void>): void {
    this.#bringing = work()
      .catch((error: unknown) => {
        const told = explain(error);
        for (const waiter of this.#waiting) waiter.fail(told);
        this.#around.app.log.warn({ function: this.id, err: error }, "a function could not be started");
        // A handler that fails has said why itself.
        return error instanceof HandlerFailed ? undefined : this.#say(told.detail);
      })
      .catch((error: unknown) => {
        this.#around.app.log.info({ function: this.id, err: error }, "a function's log could not be written");
      })
      .finally(() => {
        this.#bringing = undefined;
        this.#dispatch();
        this.#provide();
      });
  }

  async #wake(instance: Instance): Promise<void> {
    const begun = performance.now();
    try {
      await instance.wake();
      this.#around.woke(this.id, { ms: performance.now() - begun, isCold: false });
    } catch (error) {
      const { log } = this.#around.app;
      log.warn({ instance: instance.id, err: error }, "a function did not wake; it starts anew");
      await instance.say("It could not be woken where it was, and is started anew.");
      await this.#end(instance);
      await this.#coldStart({ isFirst: true });
    }
  }

  async #coldStart({ isFirst }: { isFirst: boolean }): Promise<void> {
    if (this.live === null) throw functionNotDeployed();
    const begun = performance.now();
    await this.begin(this.live);
    if (isFirst) for (const waiter of this.#waiting) waiter.isCold = true;
    this.#around.woke(this.id, { ms: performance.now() - begun, isCold: true });
  }

  /** Beside those that run: where it fails, they go on, and so do those who wait. */
  async #another(): Promise<void> {
    try {
      await this.#coldStart({ isFirst: false });
    } catch (error) {
      this.#scaleNotBefore = performance.now() + scaleAgainMs;
      this.#around.app.log.info({ function: this.id, err: error }, "another instance could not be started");
    }
  }

  #rest(instance: Instance, now: number): void {
    const idleMs = now - instance.usedAt;
    const idleTimeoutMs = this.row.idle_timeout_seconds * 1000;
    if (instance.state === "frozen") {
      if (idleMs < this.#around.app.config.functionFrozenMinutes * 60_000) return;
      this.#around.inBackground("a function could not be put on disk", () => this.store(instance));
    } else if (instance.state === "running" && instance.isQuiet) {
      const isFirst = this.instances.find((one) => this.#isServing(one) && !one.isStale) === instance;
      if (!isFirst && idleMs >= Math.min(calmMs, idleTimeoutMs)) this.#endLater(instance);
      else if (isFirst && idleMs >= idleTimeoutMs) {
        this.#around.inBackground("a function could not be held", async () => {
          await instance.hold().catch(async (error: unknown) => {
            await this.#end(instance);
            throw error;
          });
        });
      }
    }
  }

  /** Begun with what holds no more. Where it always has something to do, another one takes its place first. */
  #renew(instance: Instance, now: number): void {
    if (instance.isQuiet) return this.#endLater(instance);
    const isReplaced = this.instances.some(
      (one) => one.state === "running" && this.#isServing(one) && !one.isStale,
    );
    if (isReplaced) return this.#retire(instance, now);
    if (this.#bringing || this.#isClosed || performance.now() < this.#renewNotBefore) return;
    this.#renewNotBefore = performance.now() + renewAgainMs;
    this.#bring(() => this.#another());
  }

  /** Nobody is let to it any more: what it is answering is waited for. */
  #retire(instance: Instance, now: number): void {
    if (this.#proofs.has(instance) && now - instance.usedAt < provedMs) return;
    const since = this.#retired.get(instance) ?? now;
    this.#retired.set(instance, since);
    if (instance.isQuiet || now - since > instance.timeoutMs + graceMs) this.#endLater(instance);
  }

  /** True for an instance on a frozen machine. It does not respond until the suspension ends. */
  #isSuspended({ machine }: Instance): boolean {
    return machine !== null && this.#around.app.machines.suspension.holds(machine);
  }

  #died(instance: Instance, { said, isOutOfMemory }: ProcessEnd): void {
    if (isOutOfMemory) this.#around.ranOutOfMemory(this);
    if (instance.state === "starting" || instance.state === "ending") return;
    this.#endLater(instance, said);
  }

  /** Others may be under way in one that did not take a connection: it ends where its process has. */
  async #doubted(instance: Instance): Promise<void> {
    if (instance.state !== "running" || this.#isSuspended(instance)) return;
    if (await instance.isAlive()) {
      await sleep(busyMs);
      // Connections of a process that ends are closed a moment before it has ended.
      if (await instance.isAlive()) return;
    }
    if (instance.state !== "running" || this.#isSuspended(instance)) return;
    instance.state = "ending";
    // What it said last is still being read.
    this.#around.inBackground("an instance of a function could not be ended yet", async () => {
      await instance.say((await instance.lastWords(lastWordsMs)) ?? "Nothing listens in it any more.");
      await this.#end(instance);
    });
  }

  #endLater(instance: Instance, said?: string): void {
    instance.state = "ending";
    this.#around.inBackground("an instance of a function could not be ended yet", async () => {
      if (said !== undefined) await instance.say(said);
      await this.#end(instance);
    });
    if (said !== undefined) this.#provide();
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

  async #say(text: string): Promise<void> {
    const deployment = this.live?.id ?? "";
    await this.#around.app.machines.logs
      .of(this.id)
      .append([{ at: this.#now(), stream: "system", text, deployment }]);
  }

  #now(): number {
    return this.#around.app.clock.now().getTime();
  }
}

/** What a caller is told; what its owner is told stands in the logs. */
function explain(error: unknown): DomainError {
  if (error instanceof HandlerFailed) return functionUnavailable("its handler does not load.", error);
  return error instanceof DomainError ? error : functionUnavailable("its machine did not start.", error);
}
