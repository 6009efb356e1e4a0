/** This process's own host: the Host interface straight onto a Driver, with a fence and a limit on cold starts. */
import type { Driver, Guest, HostFacts, ImageRecipe, MachineExit, Progress } from "@kontor/runtime/driver.ts";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { Semaphore } from "#lib/semaphore.ts";
import type { ClaimSpec, Host, HostImage, Order, StartSpec } from "./host.ts";

export class LocalHost implements Host {
  readonly id: string;
  readonly epoch: number;
  readonly #driver: Driver;
  readonly #recipes: Map<string, ImageRecipe>;
  readonly #starting = new Set<string>();
  // A cold start is about 0.2 s of CPU; more at once than there are cores makes all of them late.
  readonly #coldStarts: Semaphore;

  constructor(options: {
    id: string;
    epoch: number;
    driver: Driver;
    recipes: readonly ImageRecipe[];
    concurrentStarts: number;
  }) {
    this.id = options.id;
    this.epoch = options.epoch;
    this.#driver = options.driver;
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

  async start(order: Order, spec: StartSpec, options?: { isAhead: boolean }): Promise<void> {
    this.#fence(order);
    this.#starting.add(order.machine);
    try {
      await this.#coldStarts.run(
        () => this.#driver.create({ id: order.machine, generation: order.generation, ...spec }),
        options,
      );
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
