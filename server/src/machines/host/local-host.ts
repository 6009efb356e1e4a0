/**
 * The host of this process: implements `Host` with a Driver, a check against stale orders and a limit on cold starts.
 */
import { createHash } from "node:crypto";
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import type {
  CheckpointOptions,
  Driver,
  Guest,
  HostFacts,
  Image,
  ImageRecipe,
  ImageService,
  MachineExit,
  MachineSpec,
  Progress,
  Resources,
} from "@kontor/runtime/driver.ts";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import type { AppBuilder, BuildHooks, BuiltLayers, ImageImport } from "@kontor/runtime/oci/builder.ts";
import type { PackageSources } from "@kontor/runtime/oci/bases/registries.ts";
import { type Scan, Scanner } from "@kontor/runtime/oci/scan.ts";
import { shareCheckpoint } from "@kontor/runtime/snapshots/manifest.ts";
import { copyVolume } from "@kontor/runtime/volumes/copy.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type {
  AppImageSpec,
  BuiltAppImage,
  ClaimSpec,
  Host,
  HostImage,
  HostVolume,
  Order,
  SnapshotFacts,
  StartSpec,
} from "./host.ts";
import { requireUsableConfig } from "./image-config.ts";
import { claimService, startService, whenWarm } from "./services.ts";

type VolumePlace = Pick<HostVolume, "id" | "region">;
/** Other entries of a region's directory belong to other programs. */
const volumeName = /^(vol|addon)_[a-z0-9]{1,40}(\.unfinished)?$/;

export class LocalHost implements Host {
  readonly id: string;
  readonly epoch: number;
  readonly #driver: Driver;
  readonly #builder: AppBuilder;
  readonly #scanner: Scanner;
  readonly #packageSources: PackageSources;
  readonly #recipes: Map<string, ImageRecipe>;
  readonly #innerRecipes: Map<string, ImageRecipe>;
  readonly #snapshots: string;
  readonly #volumes: ReadonlyMap<string, string>;
  readonly #diskReserveBytes: number;
  readonly #starting = new Set<string>();
  /** Services by image id, which identifies the image's content. */
  readonly #services = new Map<string, ImageService | null>();
  // A cold start uses about 0.2 s of CPU; more concurrent starts than cores make all of them slow.
  readonly #coldStarts: Semaphore;

  constructor(options: {
    id: string;
    epoch: number;
    driver: Driver;
    recipes: readonly ImageRecipe[];
    innerRecipes?: readonly ImageRecipe[];
    concurrentStarts: number;
    snapshotsDirectory: string;
    builder: AppBuilder;
    /** Directory where image scans cache package lists. */
    scansDirectory: string;
    /** Package registries, proxies and certificates that build commands use. */
    packageSources: PackageSources;
    /** Directory of volumes by region code. */
    volumesDirectories: ReadonlyMap<string, string>;
    /** Free bytes of the disk that a copy must leave. */
    diskReserveBytes: number;
  }) {
    this.id = options.id;
    this.epoch = options.epoch;
    this.#driver = options.driver;
    this.#builder = options.builder;
    this.#scanner = new Scanner(options.scansDirectory);
    this.#packageSources = options.packageSources;
    this.#snapshots = options.snapshotsDirectory;
    this.#volumes = options.volumesDirectories;
    this.#diskReserveBytes = options.diskReserveBytes;
    this.#recipes = byName(options.recipes);
    this.#innerRecipes = byName(options.innerRecipes ?? []);
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

  innerImageNames(): string[] {
    return [...this.#innerRecipes.keys()];
  }

  async ensureImage(name: string, progress?: Progress): Promise<HostImage> {
    const recipe = this.#recipes.get(name) ?? this.#innerRecipes.get(name);
    if (!recipe) throw new RuntimeError("image_failed", `This host has no recipe for "${name}".`);
    return toHostImage(await this.#driver.ensureImage(recipe, progress));
  }

  async builtImages(): Promise<HostImage[]> {
    const images = await this.#driver.images();
    return images.filter(({ base }) => base !== undefined).map(toHostImage);
  }

  async findImage(id: string): Promise<HostImage | undefined> {
    const image = (await this.#driver.images()).find((each) => each.id === id);
    return image && toHostImage(image);
  }

  async captureImage(order: Order, image: string, options: { timeoutMs: number }): Promise<HostImage> {
    this.#fence(order);
    return toHostImage(await this.#driver.captureImage(order.machine, { id: image, name: image }, options));
  }

  async removeImage(image: string): Promise<void> {
    await this.#driver.removeImage(image);
  }

  async buildImage(spec: AppImageSpec, hooks: BuildHooks): Promise<BuiltAppImage> {
    return this.#register(
      spec.id,
      await this.#builder.build({ ...spec, sources: this.#packageSources }, hooks),
    );
  }

  async importImage(spec: ImageImport, hooks: Pick<BuildHooks, "log" | "signal">): Promise<BuiltAppImage> {
    return this.#register(spec.id, await this.#builder.importImage(spec, hooks));
  }

  /** Registers the built layers as an image that machines boot from. */
  async #register(id: string, { layers, digest, sizeBytes, config }: BuiltLayers): Promise<BuiltAppImage> {
    try {
      requireUsableConfig(config);
      const env = Object.fromEntries(
        (config.Env ?? []).flatMap((pair) => {
          const at = pair.indexOf("=");
          return at > 0 ? [[pair.slice(0, at), pair.slice(at + 1)]] : [];
        }),
      );
      await this.#driver.importImage({ id, name: id, layers, env, sizeBytes });
    } catch (error) {
      await this.#builder.remove(id);
      throw error;
    }
    return { digest, sizeBytes, config };
  }

  prepareBase(name: string, progress: Progress, signal: AbortSignal): Promise<void> {
    return this.#builder.prepareBase(name, progress, signal);
  }

  appImages(): Promise<string[]> {
    return this.#builder.images();
  }

  async scanAppImage(image: string, cwd: string): Promise<Scan> {
    const layers = await this.#builder.layers(image);
    if (!layers) throw new RuntimeError("not_found", `there is no image ${image}`);
    return this.#scanner.scan({ layers, cwd });
  }

  async removeAppImage(image: string): Promise<void> {
    // The layers are removed last, because the builder finds the image by its layers.
    await this.#driver.removeImage(image);
    await this.#builder.remove(image);
  }

  pruneBuildCaches(): Promise<void> {
    return this.#builder.prune();
  }

  async service(image: string): Promise<ImageService | null> {
    const known = this.#services.get(image);
    if (known !== undefined) return known;
    for (const { id, service } of await this.#driver.images()) this.#services.set(id, service);
    return this.#services.get(image) ?? null;
  }

  start(order: Order, spec: StartSpec, options?: { isAhead: boolean }): Promise<void> {
    return this.#whileStarting(order, async () => {
      await this.#coldStarts.run(() => this.#driver.create(this.#machineSpec(order, spec)), options);
      const service = await this.service(spec.image);
      if (service === null || spec.isBuild) return;
      const guest = this.#driver.guest(order.machine);
      await startService(guest, service);
      // The caller does not wait for a machine ahead of demand, so its slot is free while its service warms up.
      if (options?.isAhead) await whenWarm(guest, service);
    });
  }

  pause(order: Order, snapshot: string): Promise<SnapshotFacts> {
    return this.#checkpoint(order, snapshot, {});
  }

  capture(order: Order, snapshot: string, { isDurable }: { isDurable: boolean }): Promise<SnapshotFacts> {
    return this.#checkpoint(order, snapshot, { keepRunning: true, isDurable });
  }

  share(snapshot: string, as: string): Promise<boolean> {
    return shareCheckpoint(join(this.#snapshots, snapshot), join(this.#snapshots, as));
  }

  async #checkpoint(order: Order, snapshot: string, options: CheckpointOptions): Promise<SnapshotFacts> {
    this.#fence(order);
    await mkdir(this.#snapshots, { recursive: true, mode: 0o700 });
    const { bytes, files, runtimeBuild, cpuClass } = await this.#driver.checkpoint(
      order.machine,
      join(this.#snapshots, snapshot),
      options,
    );
    const sha256 = createHash("sha256").update(JSON.stringify(files)).digest("hex");
    return { bytes, sha256, runtimeBuild, cpuClass };
  }

  resume(
    order: Order,
    snapshot: string,
    spec: StartSpec,
    { isClone }: { isClone: boolean } = { isClone: false },
  ): Promise<void> {
    return this.#whileStarting(order, async () => {
      await this.#coldStarts.run(() =>
        this.#driver.restore(this.#machineSpec(order, spec), join(this.#snapshots, snapshot)),
      );
      const service = isClone ? await this.service(spec.image) : null;
      if (service === null) return;
      // The earlier owner may have ended the service. The next use then starts it, with the clone's environment.
      await claimService(this.#driver.guest(order.machine), service, spec.env).catch(() => {});
    });
  }

  #machineSpec(order: Order, { volume, isBuild: _isBuild, ...spec }: StartSpec): MachineSpec {
    const machine = { id: order.machine, generation: order.generation, ...spec };
    if (volume === undefined) return machine;
    const { sizeBytes, isNew } = volume;
    return { ...machine, volume: { directory: this.#volumeDirectory(volume), sizeBytes, isNew } };
  }

  async dropSnapshot(snapshot: string): Promise<void> {
    await rm(join(this.#snapshots, snapshot), { recursive: true, force: true });
  }

  async listSnapshots(): Promise<string[]> {
    return namesIn(this.#snapshots);
  }

  async volumeUsage(volume: VolumePlace): Promise<number> {
    return this.#volumes.has(volume.region) ? this.#driver.volumeUsage(this.#volumeDirectory(volume)) : 0;
  }

  copyVolume({ id, region }: VolumePlace, to: string, signal?: AbortSignal) {
    return copyVolume(this.#volumeDirectory({ id, region }), this.#volumeDirectory({ id, region: to }), {
      reserveBytes: this.#diskReserveBytes,
      ...(signal ? { signal } : {}),
    });
  }

  async dropVolume(volume: VolumePlace): Promise<void> {
    await rm(this.#volumeDirectory(volume), { recursive: true, force: true });
  }

  async listVolumes(): Promise<VolumePlace[]> {
    const found = await Promise.all(
      Array.from(this.#volumes, async ([region, directory]) =>
        (await namesIn(directory)).filter((id) => volumeName.test(id)).map((id) => ({ id, region })),
      ),
    );
    return found.flat();
  }

  #volumeDirectory({ id, region }: VolumePlace): string {
    const directory = this.#volumes.get(region);
    if (directory !== undefined && volumeName.test(id)) return join(directory, id);
    throw new RuntimeError("volume_missing", `this host has no volumes of region ${region}`);
  }

  async #whileStarting(order: Order, start: () => Promise<void>): Promise<void> {
    this.#fence(order);
    this.#starting.add(order.machine);
    try {
      await start();
    } finally {
      this.#starting.delete(order.machine);
    }
  }

  async claim(
    order: Order,
    { image, ...spec }: ClaimSpec,
    { isAgain }: { isAgain: boolean } = { isAgain: false },
  ): Promise<void> {
    this.#fence(order);
    await this.#driver.claim(order.machine, { generation: order.generation, ...spec });
    const service = await this.service(image);
    if (service === null) return;
    const claimed = claimService(this.#driver.guest(order.machine), service, spec.env);
    if (!isAgain) return claimed;
    // A service that does not run is started on its next use, with this environment. The failure must not stop the
    // server's start.
    claimed.catch(() => {});
  }

  async freeze(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.freeze(order.machine);
  }

  async thaw(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.thaw(order.machine);
  }

  async setResources(order: Order, resources: Omit<Resources, "diskBytes">): Promise<void> {
    this.#fence(order);
    await this.#driver.setResources(order.machine, resources);
  }

  async remove(order: Order): Promise<void> {
    this.#fence(order);
    await this.#driver.remove(order.machine);
  }

  diskUse() {
    return this.#driver.diskUse();
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

  async close(): Promise<void> {
    await this.#builder.close();
    await this.#driver.close();
  }

  /** An order written before this process registered the host is void: another process may have acted since. */
  #fence(order: Order): void {
    if (order.hostEpoch === this.epoch) return;
    throw new RuntimeError("stale_generation", "The order is from an earlier epoch of this host.", {
      details: { machine: order.machine, orderEpoch: order.hostEpoch, hostEpoch: this.epoch },
    });
  }
}

function byName(recipes: readonly ImageRecipe[]): Map<string, ImageRecipe> {
  return new Map(recipes.map((recipe) => [recipe.name, recipe]));
}

/** Returns the names in a directory. Empty if the directory does not exist. */
function namesIn(directory: string): Promise<string[]> {
  return readdir(directory).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return [];
    throw error;
  });
}

function toHostImage({ id, sizeBytes, contents, substituted, substitute }: Image): HostImage {
  // Images of older servers do not have `substitute`. Only Python was substituted then.
  const version = substituted ? (substitute ?? contents["python"] ?? null) : null;
  return { id, sizeBytes, contents, substituted, substitute: version };
}
