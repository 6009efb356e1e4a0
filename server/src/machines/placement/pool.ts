/**
 * Warm machines: started, ready, frozen, without an owner. A frozen machine costs about 14 MB and no CPU, and a thaw
 * takes less than a millisecond. The pool makes create fast; a restore is no faster than a cold start.
 *
 * Their number follows use. A template with a configured floor keeps that many machines. Every shape keeps as many
 * machines as were claimed in the last minute, up to a ceiling. Machines that stay unused for a while are released.
 */
import type { Logger } from "pino";
import type { Db } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import { DomainError } from "#lib/errors.ts";
import { makeRoom } from "./placement.ts";
import { newMachineId, orderFor } from "./order.ts";
import type { Machines, WarmPool } from "../machines.ts";
import type { Shape } from "./shape.ts";
import { countPools, evictWarm, insertMachine, setObserved } from "../store.ts";

const demandWindowMs = 60_000;
/**
 * A refill takes CPU from the owner of a machine just claimed; this delay lets the owner's first command run first.
 */
const settleMs = 150;
/** Maximum wait for a pause between claims. Without a maximum, a steady stream of claims would drain the pool. */
const mostSettleMs = 1000;
const retryMs = 10_000;
/**
 * Time before a failed template is made again. The time is long, because each attempt keeps the host busy for a minute.
 */
const retryTemplateMs = 300_000;
/**
 * Network mode of waiting machines: the mode that most sandboxes request, so that a claim needs no change of the packet
 * filter. A waiting machine runs no user code.
 */
const waitingNetwork = "restricted";

const interpreterMinimumBytes = 8 * 1024 ** 3;

/**
 * Templates with warm machines, and the minimum for each. The default is debian-12, and one code-interpreter on a host
 * with enough memory: a frozen code-interpreter uses 250 MB, mostly its kernels.
 */
export function poolFloors(
  config: {
    poolTemplates: readonly string[] | null;
    poolSize: number;
    prepareTemplates: readonly string[] | null;
  },
  memoryBytes: number,
): Map<string, number> {
  const { poolTemplates, poolSize, prepareTemplates } = config;
  if (poolTemplates !== null) return new Map(poolTemplates.map((template) => [template, poolSize]));
  const floors = new Map([["debian-12", poolSize]]);
  const isPrepared = prepareTemplates?.includes("code-interpreter") ?? true;
  if (isPrepared && memoryBytes >= interpreterMinimumBytes)
    floors.set("code-interpreter", Math.min(1, poolSize));
  return floors;
}

interface Entry {
  shape: Shape;
  floor: number;
  claims: number[];
}

export class Pool implements WarmPool {
  readonly #machines: Machines;
  readonly #db: Db;
  readonly #clock: Clock;
  readonly #log: Logger;
  readonly #ceiling: number;
  readonly #entries = new Map<string, Entry>();
  #timer: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  readonly #making = new Map<string, Promise<void>>();
  /** Templates that could not be made, until `retryTemplateMs` is over: every claim fills the pools again. */
  readonly #failed = new Set<string>();
  #again = false;
  #closed = false;
  #usedAt = 0;

  constructor(deps: { machines: Machines; db: Db; clock: Clock; log: Logger; ceiling: number }) {
    this.#machines = deps.machines;
    this.#db = deps.db;
    this.#clock = deps.clock;
    this.#log = deps.log;
    this.#ceiling = deps.ceiling;
  }

  /** Keeps at least `floor` machines of this shape waiting. */
  keep(shape: Shape, floor: number): void {
    this.#entries.set(shape.poolKey, {
      shape,
      floor,
      claims: this.#entries.get(shape.poolKey)?.claims ?? [],
    });
    this.nudge(0);
  }

  /** Counts a request for a machine of this shape. */
  countRequest(shape: Shape): void {
    const entry = this.#entries.get(shape.poolKey) ?? { shape, floor: 0, claims: [] };
    entry.claims.push(this.#clock.now().getTime());
    this.#entries.set(shape.poolKey, entry);
    this.#usedAt = performance.now();
    this.nudge(settleMs);
  }

  /** Stops keeping machines of a deleted template, and releases those that wait. */
  async removeTemplate(template: string): Promise<void> {
    for (const { shape } of this.#entries.values())
      if (shape.template === template) this.#entries.delete(shape.poolKey);
    await this.#giveBack({ image: template }, Number.MAX_SAFE_INTEGER);
  }

  nudge(delayMs = settleMs): void {
    if (this.#closed || this.#ceiling === 0) return;
    this.#again = true;
    this.#timer ??= setTimeout(() => this.#run(), delayMs).unref();
  }

  /** Resolves when the pool is full; for tests and benchmarks. */
  async waitUntilFull(): Promise<void> {
    while (this.#timer || this.#filling || this.#making.size > 0) {
      await (this.#filling ??
        this.#making.values().next().value ??
        new Promise((resolve) => setTimeout(resolve, 10)));
    }
  }

  /**
   * Stops filling and releases every waiting machine, so that a stopped server leaves only owned machines.
   */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#filling;
    const waiting = await this.#db
      .transaction()
      .execute((tx) => evictWarm(tx, this.#machines.host.id, { except: "" }, Number.MAX_SAFE_INTEGER));
    await Promise.allSettled(waiting.map((row) => this.#machines.destroy(row)));
  }

  target(poolKey: string): number {
    const entry = this.#entries.get(poolKey);
    if (!entry) return 0;
    const since = this.#clock.now().getTime() - demandWindowMs;
    entry.claims = entry.claims.filter((at) => at > since);
    return Math.min(this.#ceiling, Math.max(entry.floor, entry.claims.length));
  }

  /** Number of machines that each pool wants, by pool key. */
  targets(): Map<string, number> {
    return new Map(Array.from(this.#entries.keys(), (poolKey) => [poolKey, this.target(poolKey)]));
  }

  #run(): void {
    this.#timer = undefined;
    if (this.#filling) return;
    this.#filling = this.#fill()
      .catch((error: unknown) => {
        const full = error instanceof DomainError && error.code === "no_capacity";
        this.#log[full ? "info" : "warn"](
          { err: error },
          "the pool could not be filled; trying again shortly",
        );
        this.#again = false;
        if (!this.#closed) this.#timer = setTimeout(() => this.#retry(), retryMs).unref();
      })
      .finally(() => {
        this.#filling = undefined;
        if (this.#again) this.nudge(settleMs);
      });
  }

  #retry(): void {
    this.#timer = undefined;
    this.nudge(0);
  }

  async #fill(): Promise<void> {
    await this.#lull();
    this.#again = false;
    const waiting = await countPools(this.#db, this.#machines.host.id);
    for (const { shape } of this.#entries.values()) {
      if (!this.#hasImage(shape)) continue;
      const missing = this.target(shape.poolKey) - (waiting.get(shape.poolKey) ?? 0);
      if (missing < 0) await this.#giveBack({ only: shape.poolKey }, -missing);
      for (let made = 0; made < missing && !this.#closed; made += 1) await this.#add(shape);
    }
  }

  /** Waits for a pause between claims, because claimed machines have priority over spare ones. */
  async #lull(): Promise<void> {
    const latest = performance.now() + mostSettleMs;
    for (;;) {
      const untilMs = Math.min(this.#usedAt + settleMs, latest);
      const leftMs = untilMs - performance.now();
      if (leftMs <= 0 || this.#closed) return;
      await new Promise((resolve) => setTimeout(resolve, leftMs));
    }
  }

  /** False while the template is being made, which takes minutes; other pools are filled meanwhile. */
  #hasImage({ template }: Shape): boolean {
    const { images } = this.#machines;
    const state = images.find(template)?.state ?? "ready";
    if (state === "ready") return true;
    if (this.#making.has(template) || this.#failed.has(template)) return false;
    const making = images
      .ensure(template)
      .then(
        () => this.nudge(0),
        () => {
          this.#failed.add(template);
          const retry = () => {
            this.#failed.delete(template);
            this.nudge(0);
          };
          setTimeout(retry, retryTemplateMs).unref();
        },
      )
      .finally(() => this.#making.delete(template));
    this.#making.set(template, making);
    return false;
  }

  /** Adds one machine at a time, so that a refill never slows the host down. */
  async #add(shape: Shape): Promise<void> {
    const image = await this.#machines.images.ensure(shape.template);
    const { host } = this.#machines;
    const row = await this.#db.transaction().execute(async (tx) => {
      await makeRoom({ machines: this.#machines }, tx, shape, { mayEvict: false });
      return insertMachine(tx, {
        id: newMachineId(),
        host_id: host.id,
        host_epoch: host.epoch,
        pool_key: shape.poolKey,
        image_id: image.id,
        owner_kind: "pool",
        owner_id: null,
        vcpus: shape.resources.vcpus,
        memory_bytes: shape.resources.memoryBytes,
        disk_bytes: shape.resources.diskBytes,
        max_processes: shape.resources.maxProcesses,
        network: waitingNetwork,
        hostname: "kontor",
        env_sealed: null,
        desired: "frozen",
      });
    });
    try {
      const order = orderFor(row);
      const { resources } = shape;
      const { image_id: image, hostname } = row;
      const spec = { image, resources, network: waitingNetwork, hostname, env: {} } as const;
      await host.start(order, spec, { isAhead: true });
      await host.freeze(order);
      await setObserved(this.#db, row.id, "ready");
    } catch (error) {
      await this.#machines.destroy(row);
      throw error;
    }
  }

  async #giveBack(which: { only: string } | { image: string }, count: number): Promise<void> {
    const surplus = await this.#db
      .transaction()
      .execute((tx) => evictWarm(tx, this.#machines.host.id, which, count));
    for (const row of surplus) this.#machines.destroyLater(row);
  }
}
