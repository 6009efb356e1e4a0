/**
 * A driver for fast tests of everything above the driver interface; a production server never uses it. A
 * machine is a scratch directory. The processes are ordinary processes of the host without isolation, so run
 * only commands that a test itself contains. The driver needs no root, and no program except Python for
 * terminals.
 *
 * For `cwd` and the file calls, paths are below the scratch directory. A program that opens `/workspace/x`
 * itself opens the host's path. Host names, limits and network modes are stored and listed, without effect.
 *
 * A checkpoint is a copy of the scratch directory: files are restored, processes end. A captured image is a
 * copy too. `/persist` leads to the directory of a volume, which has no size limit.
 *
 * The isolation `native` is stored and listed, without effect. An imported image is its record alone.
 *
 * A function of the test plays the service of an image, because the real program would run on the host.
 *
 * A test can make any verb fail (`fail`) or slow (`slow`), and end a machine (`end`). A file in the directory
 * records the machines, so that a second driver on the same directory finds those of the first.
 */
import { createHash } from "node:crypto";
import { access, cp, lstat, mkdir, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { constants, availableParallelism, release, totalmem } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import {
  RuntimeError,
  type Checkpoint,
  type CheckpointOptions,
  type ClaimSpec,
  type DiskUse,
  type Driver,
  type Guest,
  type HostFacts,
  type Image,
  type ImageRecipe,
  type LayeredImage,
  type LentNetwork,
  type Machine,
  type MachineExit,
  type MachineId,
  type MachineSpec,
  type MachineStats,
  type NetworkMode,
  type Progress,
  type Resources,
} from "../driver.ts";
import { checkPrivateNetwork } from "../network/private-network.ts";
import { commit, makeTemporary, readManifest } from "../snapshots/manifest.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import { FakeGuest } from "./guest.ts";

export type FakeVerb =
  | "ensureImage"
  | "captureImage"
  | "importImage"
  | "create"
  | "claim"
  | "setNetwork"
  | "setResources"
  | "freeze"
  | "thaw"
  | "remove"
  | "stats"
  | "checkpoint"
  | "restore";

interface FakeMachine {
  spec: MachineSpec;
  guest: FakeGuest;
  exit: MachineExit | null;
  /** Set while the machine is frozen. Callers wait for its resolution at the thaw. */
  frozen: PromiseWithResolvers<void> | undefined;
}

export interface FakeOptions {
  /** Directory that the test makes and deletes. */
  directory: string;
  /**
   * Functions that play services, by protocol; each connection is one call. Other services are left out of
   * images.
   */
  services?: Record<string, (connection: Duplex) => void>;
}

export class FakeDriver implements Driver {
  readonly name = "fake";
  /** Free bytes of the disk. A test may change them. */
  diskFreeBytes = 1024 ** 4;
  /** Size of the disk that machines share: free bytes and files together. */
  diskSizeBytes = Infinity;
  readonly #machines = new Map<MachineId, FakeMachine>();
  readonly #images = new Map<string, Image>();
  readonly #failures = new Map<FakeVerb, unknown[]>();
  readonly #delaysMs = new Map<FakeVerb, number>();
  readonly #exitListeners: ((id: MachineId, exit: MachineExit) => void)[] = [];
  readonly #mutex = new KeyedMutex<string>();
  readonly #directory: string;
  readonly #services: Record<string, (connection: Duplex) => void>;
  /** Functions that play services, by port. */
  readonly #played = new Map<number, (connection: Duplex) => void>();

  constructor(options: FakeOptions) {
    this.#directory = options.directory;
    this.#services = options.services ?? {};
  }

  /** Makes the next call of the verb fail with this error. Several calls queue up. */
  fail(verb: FakeVerb, error: unknown): void {
    this.#failures.set(verb, [...(this.#failures.get(verb) ?? []), error]);
  }

  /** Drops the errors of `fail` that no call has thrown yet. */
  heal(): void {
    this.#failures.clear();
  }

  /** Delays every call of the verb by this time. */
  slow(verb: FakeVerb, delayMs: number): void {
    this.#delaysMs.set(verb, delayMs);
  }

  /** Ends a machine as the kernel does. */
  end(id: MachineId, reason: MachineExit["reason"]): void {
    this.#reportEnd(this.#alive(id), id, reason);
  }

  async open(): Promise<void> {
    await mkdir(join(this.#directory, "machines"), { recursive: true });
    await this.#openImages();
    for (const id of await readdir(join(this.#directory, "machines"))) {
      const spec = await this.#readRecord(id);
      if (spec) this.#register(spec);
      // The machine's process was killed during a create, so no caller knows the machine.
      else await rm(this.#machineDirectory(id), { recursive: true, force: true });
    }
  }

  /** Finds captured and imported images. Other images are made again on demand. */
  async #openImages(): Promise<void> {
    for (const id of await readdir(join(this.#directory, "images")).catch(() => [])) {
      const text = await readFile(join(this.#imageDirectory(id), "image.json"), "utf8").catch(() => "");
      if (text === "") await rm(this.#imageDirectory(id), { recursive: true, force: true });
      else this.#images.set(id, { ...(JSON.parse(text) as Image), createdAt: new Date() });
    }
  }

  async #readRecord(id: MachineId): Promise<MachineSpec | undefined> {
    try {
      return JSON.parse(await readFile(this.#record(id), "utf8")) as MachineSpec;
    } catch {
      return undefined;
    }
  }

  /** Ends all processes. The processes are children of this process, so no other driver could find or end them. */
  async close(): Promise<void> {
    await this.#mutex.waitUntilIdle();
    const left = [...this.#machines.values()].flatMap(({ guest }) => [...guest.processes]);
    this.#machines.clear();
    for (const running of left) running.signal(constants.signals.SIGKILL);
  }

  async facts(): Promise<HostFacts> {
    return {
      driver: this.name,
      kernel: release(),
      cgroup: "none",
      vcpus: availableParallelism(),
      memoryBytes: totalmem(),
      diskFreeBytes: this.diskFreeBytes,
      runtimeBuild: "fake",
      runtimeBuilds: ["fake"],
      cpuClass: "fake",
    };
  }

  async pruneRuntimes(): Promise<void> {}

  async list(): Promise<Machine[]> {
    return Array.from(this.#machines, ([id, { spec, exit, frozen }]) => ({
      id,
      state: exit !== null ? "dead" : frozen !== undefined ? "frozen" : "running",
      spec,
      exit,
    }));
  }

  ensureImage(recipe: ImageRecipe, progress?: Progress): Promise<Image> {
    const id = `${recipe.name}-${createHash("sha256").update(JSON.stringify(recipe)).digest("hex").slice(0, 8)}`;
    return this.#mutex.run(id, async () => {
      const there = this.#images.get(id);
      if (there !== undefined) return there;
      await this.#hook("ensureImage");
      const player = this.#services[recipe.service?.speaks ?? ""];
      if (recipe.service && player) this.#played.set(recipe.service.port, player);
      const substituted = recipe.ways[0]?.substitute ?? false;
      const image: Image = {
        id,
        name: recipe.name,
        sizeBytes: 1,
        env: recipe.env,
        contents: { ...recipe.promise },
        substituted,
        ...(substituted ? { substitute: Object.values(recipe.promise)[0] ?? "none" } : {}),
        service: recipe.service && player ? { ...recipe.service, argv: ["/bin/sleep", "1d"] } : null,
        createdAt: new Date(),
      };
      this.#images.set(id, image);
      progress?.({ fraction: 1, step: "done" });
      return image;
    });
  }

  async images(): Promise<Image[]> {
    return [...this.#images.values()];
  }

  async captureImage(id: MachineId, image: { id: string; name: string }): Promise<Image> {
    const machine = this.#alive(id);
    const base = this.#images.get(machine.spec.image);
    if (base === undefined) throw new RuntimeError("not_found", `there is no image ${machine.spec.image}`);
    if (this.#images.has(image.id)) {
      throw new RuntimeError("already_exists", `image ${image.id} exists already`);
    }
    for (const running of machine.guest.processes) running.signal(constants.signals.SIGKILL);
    await this.#hook("captureImage");
    this.#alive(id);
    const directory = this.#imageDirectory(image.id);
    await mkdir(directory, { recursive: true });
    await cp(this.#root(id), join(directory, "root"), { recursive: true, verbatimSymlinks: true });
    const made: Image = { ...base, ...image, base: base.id, createdAt: new Date() };
    await writeFile(join(directory, "image.json"), JSON.stringify(made));
    this.#images.set(image.id, made);
    return made;
  }

  /** Records the image, and does not read its layers. */
  async importImage({ layers: _layers, ...image }: LayeredImage): Promise<Image> {
    if (this.#images.has(image.id)) {
      throw new RuntimeError("already_exists", `image ${image.id} exists already`);
    }
    await this.#hook("importImage");
    const made: Image = { ...image, contents: {}, substituted: false, service: null, createdAt: new Date() };
    await mkdir(this.#imageDirectory(image.id), { recursive: true });
    await writeFile(join(this.#imageDirectory(image.id), "image.json"), JSON.stringify(made));
    this.#images.set(image.id, made);
    return made;
  }

  async removeImage(id: string): Promise<void> {
    this.#images.delete(id);
    await rm(this.#imageDirectory(id), { recursive: true, force: true });
  }

  async lendNetwork(): Promise<LentNetwork> {
    return { netnsPath: "/proc/self/ns/net", resolver: "127.0.0.1", release: async () => {} };
  }

  create(spec: MachineSpec): Promise<void> {
    return this.#boot(spec, "create", async (root) => {
      const from = join(this.#imageDirectory(spec.image), "root");
      await cp(from, root, { recursive: true, verbatimSymlinks: true }).catch(ignoreMissing);
      for (const directory of ["workspace", "tmp", "persist", "root", "etc"]) {
        await mkdir(join(root, directory), { recursive: true });
      }
    });
  }

  async restore(spec: MachineSpec, directory: string): Promise<void> {
    await readManifest(directory);
    return this.#boot(spec, "restore", (root) => cp(join(directory, "files"), root, { recursive: true }));
  }

  #boot(spec: MachineSpec, verb: "create" | "restore", fill: (root: string) => Promise<void>): Promise<void> {
    return this.#mutex.run(spec.id, async () => {
      checkPrivateNetwork(spec);
      if (this.#machines.has(spec.id)) throw new RuntimeError("already_exists", "the machine exists already");
      if (!this.#images.has(spec.image))
        throw new RuntimeError("not_found", `there is no image ${spec.image}`);
      await this.#hook(verb);
      await fill(this.#root(spec.id));
      await this.#attach(spec);
      await this.#write(spec);
      this.#register(spec);
    });
  }

  async #attach({ id, volume }: MachineSpec): Promise<void> {
    if (volume === undefined) return;
    try {
      const others = Array.from(this.#machines.values(), ({ spec }) => spec.volume?.directory);
      if (others.includes(volume.directory)) {
        throw new RuntimeError("volume_in_use", "another machine has the volume");
      }
      if (volume.isNew) await mkdir(volume.directory, { recursive: true });
      await access(volume.directory).catch((error: unknown) => {
        const message = "the volume's data is missing";
        throw new RuntimeError("volume_missing", message, { cause: error });
      });
      await rm(join(this.#root(id), "persist"), { recursive: true });
      await symlink(volume.directory, join(this.#root(id), "persist"));
    } catch (error) {
      await rm(this.#machineDirectory(id), { recursive: true });
      throw error;
    }
  }

  async diskUse(): Promise<DiskUse> {
    const machines = await Promise.all(
      Array.from(this.#machines, async ([id, { spec }]): Promise<[MachineId, number]> => {
        const volume = spec.volume === undefined ? 0 : await bytesBelow(spec.volume.directory);
        return [id, (await bytesBelow(this.#root(id))) + volume];
      }),
    );
    const taken = machines.reduce((sum, [, bytes]) => sum + bytes, 0);
    const freeBytes = Math.max(0, Math.min(this.diskFreeBytes, this.diskSizeBytes - taken));
    return { freeBytes, machines: new Map(machines) };
  }

  volumeUsage(directory: string): Promise<number> {
    return bytesBelow(directory);
  }

  checkpoint(id: MachineId, directory: string, options: CheckpointOptions = {}): Promise<Checkpoint> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      this.#thaw(machine);
      await this.#hook("checkpoint");
      this.#freeze(machine);
      try {
        const at = await makeTemporary(directory);
        await cp(this.#root(id), join(at, "files"), { recursive: true });
        if (options.keepRunning) this.#thaw(machine);
        const made = { runtimeBuild: "fake", cpuClass: "fake", guestBuild: "fake" };
        return await commit(directory, made, options);
      } catch (error) {
        this.#thaw(machine);
        throw error;
      }
    });
  }

  claim(id: MachineId, spec: ClaimSpec): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      if (spec.generation < machine.spec.generation) {
        throw new RuntimeError("stale_generation", "a later generation of this machine exists");
      }
      await this.#hook("claim");
      await this.#change(machine, {
        ...spec,
        resources: { ...spec.resources, diskBytes: machine.spec.resources.diskBytes },
      });
      machine.guest.env = this.#environment(machine.spec);
      machine.guest.hostname = spec.hostname;
      this.#thaw(machine);
    });
  }

  setNetwork(id: MachineId, mode: NetworkMode): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#hook("setNetwork");
      await this.#change(machine, { network: mode });
    });
  }

  setResources(id: MachineId, resources: Omit<Resources, "diskBytes">): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#hook("setResources");
      const { diskBytes } = machine.spec.resources;
      await this.#change(machine, { resources: { ...resources, diskBytes } });
    });
  }

  freeze(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#hook("freeze");
      this.#freeze(machine);
    });
  }

  thaw(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#hook("thaw");
      this.#thaw(machine);
    });
  }

  remove(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#machines.get(id);
      if (machine === undefined) return;
      await this.#hook("remove");
      this.#machines.delete(id);
      this.#reportEnd(machine, id, "removed");
      await Promise.all(Array.from(machine.guest.processes, ({ ended }) => ended));
      await rm(this.#machineDirectory(id), { recursive: true, force: true });
    });
  }

  async stats(id: MachineId): Promise<MachineStats> {
    const machine = this.#alive(id);
    await this.#hook("stats");
    return {
      at: new Date(),
      cpuSeconds: 0,
      memoryBytes: 0,
      processes: machine.guest.processes.size,
      diskBytes: 0,
      egressDenied: 0,
      networkRxBytes: 0,
      networkTxBytes: 0,
    };
  }

  guest(id: MachineId): Guest {
    return this.#alive(id).guest;
  }

  onExit(listener: (id: MachineId, exit: MachineExit) => void): void {
    this.#exitListeners.push(listener);
  }

  async #hook(verb: FakeVerb): Promise<void> {
    const delayMs = this.#delaysMs.get(verb);
    if (delayMs !== undefined) await sleep(delayMs);
    const failures = this.#failures.get(verb);
    if (failures !== undefined && failures.length > 0) throw failures.shift();
  }

  #alive(id: MachineId): FakeMachine {
    const machine = this.#machines.get(id);
    if (machine === undefined) throw new RuntimeError("not_found", "there is no such machine");
    if (machine.exit !== null) throw new RuntimeError("not_running", "the machine has ended");
    return machine;
  }

  #register(spec: MachineSpec): void {
    const machine: FakeMachine = {
      spec,
      exit: null,
      frozen: undefined,
      guest: new FakeGuest(this.#root(spec.id), this.#played, async () => {
        await machine.frozen?.promise;
        if (machine.exit !== null) throw new RuntimeError("machine_died", "the machine ended");
      }),
    };
    machine.guest.env = this.#environment(spec);
    machine.guest.hostname = spec.hostname;
    this.#machines.set(spec.id, machine);
  }

  async #change(machine: FakeMachine, change: Partial<MachineSpec>): Promise<void> {
    machine.spec = { ...machine.spec, ...change };
    await this.#write(machine.spec);
  }

  #freeze(machine: FakeMachine): void {
    machine.frozen ??= Promise.withResolvers<void>();
    for (const running of machine.guest.processes) running.signal(constants.signals.SIGSTOP);
  }

  #thaw(machine: FakeMachine): void {
    for (const running of machine.guest.processes) running.signal(constants.signals.SIGCONT);
    machine.frozen?.resolve();
    machine.frozen = undefined;
  }

  /** Returns the environment of the image, overridden by the machine's own environment. */
  #environment(spec: MachineSpec): Record<string, string> {
    return { ...this.#images.get(spec.image)?.env, ...spec.env };
  }

  #reportEnd(machine: FakeMachine, id: MachineId, reason: MachineExit["reason"]): void {
    if (machine.exit !== null) return;
    machine.exit = { reason, at: new Date() };
    for (const running of machine.guest.processes) running.machineEnds();
    machine.frozen?.resolve();
    machine.frozen = undefined;
    for (const listener of this.#exitListeners) listener(id, machine.exit);
  }

  #machineDirectory(id: MachineId): string {
    return join(this.#directory, "machines", id);
  }

  #imageDirectory(id: string): string {
    return join(this.#directory, "images", id);
  }

  #root(id: MachineId): string {
    return join(this.#machineDirectory(id), "root");
  }

  #record(id: MachineId): string {
    return join(this.#machineDirectory(id), "machine.json");
  }

  async #write(spec: MachineSpec): Promise<void> {
    await writeFile(this.#record(spec.id), JSON.stringify({ ...spec, env: {} }));
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOENT") throw error;
}

async function bytesBelow(directory: string): Promise<number> {
  const names = await readdir(directory, { recursive: true }).catch(() => []);
  // A file may be deleted meanwhile.
  const sizes = await Promise.all(
    names.map((name) =>
      lstat(join(directory, name)).then(
        (found) => (found.isFile() ? found.size : 0),
        () => 0,
      ),
    ),
  );
  return sizes.reduce((sum, bytes) => sum + bytes, 0);
}
