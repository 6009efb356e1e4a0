/** This process's own host: the Host interface straight onto a Driver, with a fence and a limit on cold starts. */
import { createHash } from "node:crypto";
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Driver, Guest, HostFacts, ImageRecipe, MachineExit, Progress } from "@kontor/runtime/driver.ts";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { Semaphore } from "#lib/semaphore.ts";
import type { ClaimSpec, Host, HostImage, Order, SnapshotFacts, StartSpec } from "./host.ts";

export class LocalHost implements Host {
  readonly id: string;
  readonly epoch: number;
  readonly #driver: Driver;
  readonly #recipes: Map<string, ImageRecipe>;
  readonly #snapshots: string;
  readonly #starting = new Set<string>();
  // A cold start is about 0.2 s of CPU; more at once than there are cores makes all of them late.
  readonly #coldStarts: Semaphore;

  constructor(options: {
    id: string;
    epoch: number;
    driver: Driver;
    recipes: readonly ImageRecipe[];
    concurrentStarts: number;
    snapshotsDirectory: string;
  }) {
    this.id = options.id;
    this.epoch = options.epoch;
    this.#driver = options.driver;
    this.#snapshots = options.snapshotsDirectory;
    this.#recipes = new Map(options.recipes.map((recipe) => [recipe.name, recipe]));
    this.#coldStarts = new Semaphore(options.concurrentStarts);
  }

  facts(): Promise<HostFacts> {
    return this.#driver.facts();
  }

  async list() {
    const machines = await this.#driver.list();
    return machines.map(({ id, state, exit }) => ({ machine: id, state, exit }));
  }

  imageNames(): string[] {
    return [...this.#recipes.keys()];
  }

  async ensureImage(name: string, progress?: Progress): Promise<HostImage> {
    const recipe = this.#recipes.get(name);
    if (!recipe) throw new RuntimeError("image_failed", `This host has no recipe for "${name}".`);
    const { id, sizeBytes, contents, substituted } = await this.#driver.ensureImage(recipe, progress);
    return { id, sizeBytes, contents, substituted };
  }

  start(order: Order, spec: StartSpec, options?: { isAhead: boolean }): Promise<void> {
    const created = { id: order.machine, generation: order.generation, ...spec };
    return this.#boot(order, () => this.#driver.create(created), options);
  }

  async pause(order: Order, snapshot: string): Promise<SnapshotFacts> {
    this.#fence(order);
    await mkdir(this.#snapshots, { recursive: true, mode: 0o700 });
    const { bytes, files, runtimeBuild, cpuClass } = await this.#driver.checkpoint(
      order.machine,
      join(this.#snapshots, snapshot),
    );
    const sha256 = createHash("sha256").update(JSON.stringify(files)).digest("hex");
    return { bytes, sha256, runtimeBuild, cpuClass };
  }

  resume(order: Order, snapshot: string, spec: StartSpec): Promise<void> {
    const restored = { id: order.machine, generation: order.generation, ...spec };
    return this.#boot(order, () => this.#driver.restore(restored, join(this.#snapshots, snapshot)));
  }

  async dropSnapshot(snapshot: string): Promise<void> {
    await rm(join(this.#snapshots, snapshot), { recursive: true, force: true });
  }

  async listSnapshots(): Promise<string[]> {
    return readdir(this.#snapshots).catch((error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT") return [];
      throw error;
    });
  }

  async #boot(order: Order, boot: () => Promise<void>, options?: { isAhead: boolean }): Promise<void> {
    this.#fence(order);
    this.#starting.add(order.machine);
    try {
      await this.#coldStarts.run(boot, options);
    } finally {
      this.#starting.delete(order.machine);
    }
  }

  async claim(order: Order, spec: ClaimSpec): Promise<void> {
    this.#fence(order);
    await this.#driver.claim(order.machine, { generation: order.generation, ...spec });
  }

  async freeze(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.freeze(order.machine);
  }

  async thaw(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.thaw(order.machine);
  }

  async remove(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.remove(order.machine);
  }

  stats(machine: string) {
    return this.#driver.stats(machine);
  }

  connect(machine: string): Guest {
    return this.#driver.guest(machine);
  }

  isStarting(machine: string): boolean {
    return this.#starting.has(machine);
  }

  onExit(listener: (machine: string, exit: MachineExit) => void): void {
    this.#driver.onExit(listener);
  }

  close(): Promise<void> {
    return this.#driver.close();
  }

  /** An order written before this process registered the host is void: another process may have acted since. */
  #fence(order: Order): void {
    if (order.hostEpoch === this.epoch) return;
    throw new RuntimeError("stale_generation", "The order is from an earlier epoch of this host.", {
      details: { machine: order.machine, orderEpoch: order.hostEpoch, hostEpoch: this.epoch },
    });
  }
}
