/**
 * Machines on Linux. A machine is a group of processes in its own control group. A machine has a network namespace
 * (../network), a disk image that bounds its writes, and below that the files of an image. PID 1 is Kontor's guest
 * program, which connects to a unix socket of this process (../guest). An engine isolates the processes: gVisor's
 * kernel (../gvisor), or the host's kernel behind a user namespace (../runc).
 *
 * No machine depends on this process: its parent is a shim (shim/shim.c), and its record is a file. `close`,
 * and even kill -9, leave machines running. The next `open` reads the records, checks which machines live,
 * listens on the same sockets, and removes everything without a record.
 *
 * Only the control group shows whether a machine lives: `runsc state` still returns "running" after a kill.
 * The end of a machine is noticed when the guest's connection ends, and at the latest by `list`.
 */
import { createHash } from "node:crypto";
import { chmod, chown, mkdir, readFile, readdir, rm, statfs, writeFile } from "node:fs/promises";
import { availableParallelism, release, totalmem } from "node:os";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Cgroups, LEFTOVER_TIMEOUT_MS } from "../cgroup/cgroups.ts";
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
  type Isolation,
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
import { Leftovers } from "../leftovers.ts";
import type { EgressServices } from "../network/egress.ts";
import { GATEWAY_ADDRESS } from "../network/addresses.ts";
import type { Member } from "../network/groups.ts";
import { HostNetwork } from "../network/network.ts";
import { checkPrivateNetwork } from "../network/private-network.ts";
import { Images } from "../rootfs/images.ts";
import { readManifest, verify } from "../snapshots/manifest.ts";
import { waitForAll } from "../wait-for-all.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import { imageOf, volumeUsage } from "../volumes/image.ts";
import { checkpointMachine, resumeMachine, restoreMachine } from "../gvisor/checkpoint.ts";
import { captureStream } from "./capture-stream.ts";
import { cleanUp } from "./cleanup.ts";
import { bootMachine, type CreateNeeds, type CreateTimings } from "./create.ts";
import { diskUsage, allocatedBytes } from "./disk.ts";
import { guestPath, keepGuest } from "./guests.ts";
import { LinuxMachine } from "./machine.ts";
import { hostPaths, isMachineId, machinePaths, type HostPaths } from "./paths.ts";
import { RESOLV_CONF } from "./kontor-mounts.ts";
import { freeSlot, readRecords, writeRecord, type MachineRecord } from "./records.ts";
import type { Platform } from "../gvisor/runsc.ts";
import { NativeEngine } from "../runc/engine.ts";
import { ownLimits } from "../runc/limits.ts";
import { UserRanges } from "../runc/users.ts";
import { RunscBuilds } from "../gvisor/builds.ts";
import { GvisorEngine } from "../gvisor/engine.ts";
import { ImageRoots, makeMountPoints } from "../rootfs/layers.ts";
import type { Engine } from "./engine.ts";
import { needsProcSysNetMask } from "./start.ts";

/** Largest number of slots. Above it, the outer addresses of an instance, 100.(64+n).0.0/16, are exhausted. */
const MAX_SLOTS = 65_000;
/**
 * Largest number of names in one image: several times those of a distribution with compilers. This process keeps the
 * names in memory.
 */
const MAX_IMAGE_ENTRIES = 500_000;
/** Time in which a guest must reconnect after its connection ended, if its machine still lives. */
const SILENCE_MS = 5_000;
/** Interval between checks for machines that died, or that lost a helper process. */
const DEAD_LOOK_MS = 1_000;

export interface LinuxOptions {
  /** Directory of records, disks and, unless `imagesDirectory` is set, images. */
  stateDir: string;
  imagesDirectory?: string;
  /** 0 to 63: separates several installations on one host (names, addresses, groups). */
  instance: number;
  /** Network interface for the traffic of open machines. Null: that of the default route. */
  uplink: string | null;
  /** Resolvers for open machines. Null: the host's own. */
  dnsServers: string[] | null;
  /** TCP port on 10.0.0.1 at which restricted machines reach the egress proxy. */
  proxyPort: number;
  /** Egress proxy of restricted machines. Without a proxy, these machines reach nothing. */
  egress?: EgressServices;
  guestBinary: string;
  shimBinary: string;
  /** Names of programs on PATH, or paths of programs. */
  runsc: string;
  runc: string;
  platform: Platform;
  /** Logs an event of the driver, with the fields that help to find a fault. */
  log: (event: string, fields: Record<string, unknown>) => void;
  /** Called at each kill point of a checkpoint and a restore, for tests that end the process there. */
  reached?: (point: string) => Promise<void>;
}

export class LinuxDriver implements Driver {
  readonly name = "linux";
  readonly #options: LinuxOptions;
  readonly #host: HostPaths;
  readonly #network: HostNetwork;
  readonly #images: Images;
  readonly #roots: ImageRoots;
  readonly #machines = new Map<MachineId, LinuxMachine>();
  /** Network slots of machines that exist, start or end. */
  readonly #slots = new Set<number>();
  /** Directory of a volume → machine that uses it. */
  readonly #volumes = new Map<string, MachineId>();
  readonly #users: UserRanges;
  readonly #mutex = new KeyedMutex<MachineId>();
  readonly #runsc: RunscBuilds;
  readonly #verifying = new Map<string, Promise<void>>();
  readonly #background = new Set<Promise<unknown>>();
  /** Machines without a record, whose processes, mounts or files could not be removed yet. */
  readonly #leftovers: Leftovers;
  readonly #exitListeners: ((id: MachineId, exit: MachineExit) => void)[] = [];
  #cpuClass: Promise<string> | undefined;
  #guest: Promise<string> | undefined;
  #openCgroups: Cgroups | undefined;
  #openEngines: Record<Isolation, Engine> | undefined;
  #looking: NodeJS.Timeout | undefined;
  #isLooking = false;
  readonly #removing = new WeakSet<LinuxMachine>();

  constructor(options: LinuxOptions) {
    this.#options = options;
    this.#host = hostPaths(options.stateDir, options.instance);
    this.#runsc = new RunscBuilds(this.#host.runsc, options.runsc);
    this.#network = new HostNetwork({ ...options, machineIn: (slot) => this.#machineIn(slot) });
    this.#users = new UserRanges({ directory: this.#host.users, instance: options.instance });
    this.#leftovers = new Leftovers({ remove: (id) => this.#removeLeftover(id), log: options.log });
    this.#images = new Images({ directory: options.imagesDirectory ?? this.#host.images });
    this.#roots = new ImageRoots({
      directory: this.#host.roots,
      mountPoints: this.#host.mountPoints,
      shimBinary: options.shimBinary,
    });
  }

  async open(): Promise<void> {
    for (const directory of [this.#host.machines, this.#host.run]) {
      await mkdir(directory, { recursive: true, mode: 0o700 });
    }
    // Root of a native machine passes through this directory to its files. The machine's own directory admits
    // it alone.
    for (const directory of [dirname(this.#host.run), this.#host.run]) {
      await chown(directory, 0, 0);
      await chmod(directory, 0o711);
    }
    await this.#runsc.open();
    await makeMountPoints(this.#host.mountPoints);
    await writeFile(this.#host.resolvConf, RESOLV_CONF, { mode: 0o644 });
    this.#openCgroups = await Cgroups.detect(`kontor${this.#options.instance}`, this.#options.log);
    await this.#cgroups.open();
    this.#openEngines = await this.#makeEngines();
    const found = await readRecords(this.#host.machines);
    await this.#network.open(found.flatMap(({ record }) => memberOf(record)));
    await this.#adopt(found);
    this.#looking = setInterval(() => void this.#findDead(), DEAD_LOOK_MS).unref();
  }

  async #makeEngines(): Promise<Record<Isolation, Engine>> {
    const { shimBinary, runc, platform } = this.#options;
    const runsc = this.#runsc.path();
    const maskProcSysNet = await needsProcSysNetMask();
    const limits = ownLimits(await readFile("/proc/self/limits", "utf8"));
    return {
      gvisor: new GvisorEngine({ runsc, platform, maskProcSysNet, roots: this.#roots }),
      native: new NativeEngine({ runc, shimBinary, limits, mountPoints: this.#host.mountPoints }),
    };
  }

  /**
   * Releases the host's resources. `removeAll` also reverts the driver's changes to the host, for an uninstall. The
   * machines must have been removed before.
   */
  async close(options: { removeAll?: boolean } = {}): Promise<void> {
    clearInterval(this.#looking);
    await this.waitUntilIdle();
    await this.#leftovers.close();
    // Without a machine, nothing needs adoption, so the host is reverted.
    const isEmpty = this.#machines.size === 0 && this.#leftovers.remaining.length === 0;
    const removeAll = options.removeAll ?? isEmpty;
    for (const machine of this.#machines.values()) await machine.connections.close();
    this.#machines.clear();
    this.#slots.clear();
    this.#volumes.clear();
    await this.#network.close({ removeAll });
    if (!removeAll) return;
    await this.#roots.removeAll();
    await this.#cgroups.removeParent();
    await rm(this.#host.run, { recursive: true, force: true });
  }

  /** Resolves when no background work runs, such as the removal of a namespace or the handling of an exit. */
  async waitUntilIdle(): Promise<void> {
    await this.#mutex.waitUntilIdle();
    while (this.#background.size > 0) await Promise.allSettled(this.#background);
    await this.#network.waitUntilIdle();
  }

  async facts(): Promise<HostFacts> {
    const [cpu, disk] = await Promise.all([this.#ownCpuClass(), statfs(this.#options.stateDir)]);
    return {
      driver: `${this.name} (gvisor ${this.#options.platform}, runc)`,
      kernel: release(),
      cgroup: this.#cgroups.layout.version,
      vcpus: availableParallelism(),
      memoryBytes: totalmem(),
      diskFreeBytes: disk.bavail * disk.bsize,
      runtimeBuild: this.#runsc.current,
      runtimeBuilds: this.#runsc.all,
      cpuClass: cpu,
    };
  }

  pruneRuntimes(neededBuilds: readonly string[]): Promise<void> {
    const running = Array.from(this.#machines.values(), (machine) => machine.runtimeBuild ?? "");
    return this.#runsc.prune(new Set([...running, ...neededBuilds]));
  }

  #ownCpuClass(): Promise<string> {
    this.#cpuClass ??= readFile("/proc/cpuinfo", "utf8").then(cpuClass);
    return this.#cpuClass;
  }

  async list(): Promise<Machine[]> {
    return Promise.all(
      Array.from(this.#machines.values(), async (machine) => {
        await this.#checkForEnd(machine);
        const state =
          machine.exit !== null ? "dead" : machine.isFrozen || machine.isHeld ? "frozen" : "running";
        return { id: machine.id, state, spec: machine.spec, exit: machine.exit };
      }),
    );
  }

  ensureImage(recipe: ImageRecipe, progress?: Progress): Promise<Image> {
    return this.#images.ensure(recipe, progress ?? (() => {}));
  }

  images(): Promise<Image[]> {
    return this.#images.list();
  }

  /** Acquires no lock: a concurrent remove ends the capture too. */
  async captureImage(
    id: MachineId,
    image: { id: string; name: string },
    { timeoutMs }: { timeoutMs: number },
  ): Promise<Image> {
    const machine = this.#alive(id);
    if (machine.isolation === "native") {
      throw new RuntimeError("image_failed", "a native machine cannot be captured");
    }
    const begin = performance.now();
    const maxBytes = machine.spec.resources.diskBytes;
    const stream = captureStream(machine.guest, { timeoutMs });
    const limits = { maxBytes, maxEntries: MAX_IMAGE_ENTRIES };
    const made = await this.#images.capture(machine.spec.image, image, stream, limits, (files) =>
      this.#roots.rootOf(files),
    );
    this.#options.log("image_captured", { machine: id, image: image.id, ms: performance.now() - begin });
    return made;
  }

  importImage(image: LayeredImage): Promise<Image> {
    return this.#images.import(image);
  }

  async removeImage(id: string): Promise<void> {
    await this.#images.remove(id);
    await this.#roots.remove(id);
  }

  async lendNetwork(mode: NetworkMode): Promise<LentNetwork> {
    const slot = freeSlot(this.#slots);
    if (slot > MAX_SLOTS)
      throw new RuntimeError("no_capacity", "every network slot of the host is in use; stop some machines");
    this.#slots.add(slot);
    const release = async () => {
      // A slot whose shutdown failed stays unused until the next `open` sweeps it.
      await this.#network.detach(slot);
      this.#slots.delete(slot);
    };
    try {
      const { netnsPath } = await this.#network.attach(slot, mode);
      return { netnsPath, resolver: GATEWAY_ADDRESS, release };
    } catch (error) {
      await release();
      throw error;
    }
  }

  create(spec: MachineSpec): Promise<void> {
    const builds = async () => ({
      guestBuild: await this.#ownGuest(),
      ...(spec.isolation === "native"
        ? {}
        : {
            runtimeBuild: this.#runsc.current,
            // Half of the memory, as on Linux (tmpfs(5)).
            sharedMemoryBytes: Math.floor(spec.resources.memoryBytes / 2),
          }),
    });
    return this.#boot(spec, "machine_created", builds, bootMachine);
  }

  async restore(spec: MachineSpec, directory: string): Promise<void> {
    if (spec.isolation === "native") {
      throw new RuntimeError("not_restorable", "a native machine cannot be restored");
    }
    const [checkpoint, cpu] = await Promise.all([readManifest(directory), this.#ownCpuClass()]);
    const { runtimeBuild } = checkpoint;
    if (!this.#runsc.has(runtimeBuild) || checkpoint.cpuClass !== cpu) {
      throw new RuntimeError(
        "not_restorable",
        "the checkpoint was made by another build or on other processors",
        { details: { builds: this.#runsc.all, cpuClass: cpu, needs: [runtimeBuild, checkpoint.cpuClass] } },
      );
    }
    const runsc = this.#runsc.path(runtimeBuild);
    const from = { ...this.#options, runsc, directory, bytes: checkpoint.bytes };
    const { guestBuild, sharedMemoryBytes } = checkpoint;
    // A restore uses the mount options of the checkpoint. Newer versions of runsc refuse other options.
    const shared = sharedMemoryBytes === undefined ? {} : { sharedMemoryBytes };
    const builds = async () => ({ guestBuild, runtimeBuild, ...shared });
    return this.#boot(spec, "machine_restored", builds, async (needs, machine) => {
      // Verified concurrently with the start: a machine from damaged files may run for a moment, but no caller can use
      // it.
      const whole = this.#verifyOnce(directory, checkpoint);
      const restored = restoreMachine(needs, machine, from);
      await waitForAll(whole, restored);
      return restored;
    });
  }

  /** Verifies the files of a checkpoint. Concurrent restores from the same files verify them once. */
  #verifyOnce(directory: string, checkpoint: Checkpoint): Promise<void> {
    const known = this.#verifying.get(directory);
    if (known) return known;
    const verified = verify(directory, checkpoint).finally(() => this.#verifying.delete(directory));
    this.#verifying.set(directory, verified);
    return verified;
  }

  #boot(
    spec: MachineSpec,
    event: string,
    builds: () => Promise<Pick<MachineRecord, "guestBuild" | "runtimeBuild" | "sharedMemoryBytes">>,
    boot: (needs: CreateNeeds, machine: LinuxMachine) => Promise<CreateTimings>,
  ): Promise<void> {
    return this.#mutex.run(spec.id, async () => {
      if (!isMachineId(spec.id)) throw new RuntimeError("failed", `"${spec.id}" is not a machine id`);
      checkPrivateNetwork(spec);
      if (this.#machines.has(spec.id)) throw new RuntimeError("already_exists", "the machine exists already");
      const image = (await this.#images.list()).find(({ id }) => id === spec.image);
      if (image === undefined) throw new RuntimeError("not_found", `there is no image ${spec.image}`);
      await this.#leftovers.release(spec.id);
      const engine = await builds();
      const users = spec.isolation === "native" ? { firstUser: await this.#users.lease(spec.id) } : {};
      const slot = freeSlot(this.#slots);
      try {
        if (slot > MAX_SLOTS)
          throw new RuntimeError(
            "no_capacity",
            "every network slot of the host is in use; stop some machines",
          );
        this.#reserveVolume(spec);
      } catch (error) {
        await this.#users.release(spec.id);
        throw error;
      }
      this.#slots.add(slot);
      const record: MachineRecord = { version: 1, slot, imageEnv: image.env, ...engine, spec, ...users };
      const machine = new LinuxMachine(this.#host, record);
      try {
        const timings = await boot(
          {
            ...this.#options,
            engine: this.#engineOf(machine),
            cgroups: this.#cgroups,
            network: this.#network,
            image: await this.#images.filesOf(image.id),
            guestBinary: guestPath(this.#host.guests, engine.guestBuild),
            resolvConf: this.#host.resolvConf,
          },
          machine,
        );
        this.#options.log(event, { machine: spec.id, slot, ...timings });
      } catch (error) {
        await this.#removeFromHost(machine);
        throw error;
      }
      this.#register(machine);
    });
  }

  /** Rejects a second user of a volume: two mounts of one image would destroy the filesystem. */
  #reserveVolume({ id, volume }: MachineSpec): void {
    if (volume === undefined) return;
    if (this.#volumes.has(volume.directory)) {
      throw new RuntimeError("volume_in_use", "another machine has the volume", {
        details: { machine: this.#volumes.get(volume.directory) },
      });
    }
    this.#volumes.set(volume.directory, id);
  }

  /** Returns the build of this server's guest program, which is copied at the first start of a machine. */
  #ownGuest(): Promise<string> {
    // Concurrent callers share one copy. A failed copy is retried.
    this.#guest ??= keepGuest(this.#host.guests, this.#options.guestBinary).catch((error: unknown) => {
      this.#guest = undefined;
      throw error;
    });
    return this.#guest;
  }

  checkpoint(id: MachineId, directory: string, options: CheckpointOptions = {}): Promise<Checkpoint> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      if (machine.isolation === "native") {
        throw new RuntimeError("not_checkpointable", "a native machine cannot be checkpointed");
      }
      await this.#thaw(machine);
      const begin = performance.now();
      try {
        const checkpoint = await checkpointMachine(
          await this.#checkpointNeeds(machine),
          machine,
          directory,
          options,
        );
        this.#options.log("machine_checkpointed", {
          machine: id,
          bytes: checkpoint.bytes,
          ms: performance.now() - begin,
        });
        return checkpoint;
      } catch (error) {
        await this.#endIfHeld(machine);
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
      const resources = { ...spec.resources, diskBytes: machine.spec.resources.diskBytes };
      await this.#change(machine, { ...spec, resources });
      // Concurrently: changing the network mode takes longest, and PID 1 needs only the thaw.
      await waitForAll(
        this.#cgroups.setLimits(id, resources, machine.isolation),
        this.#network.setMode(machine.slot, spec.network),
        this.#thaw(machine).then(() => machine.configure()),
      );
    });
  }

  setNetwork(id: MachineId, mode: NetworkMode): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#change(machine, { network: mode });
      await this.#network.setMode(machine.slot, mode);
    });
  }

  setResources(id: MachineId, resources: Omit<Resources, "diskBytes">): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#cgroups.setLimits(id, resources, machine.isolation);
      await this.#change(machine, {
        resources: { ...resources, diskBytes: machine.spec.resources.diskBytes },
      });
      // A frozen machine gets its limit when it is thawed.
      if (!machine.isFrozen && !machine.isHeld) await machine.limit();
    });
  }

  freeze(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      if (machine.isFrozen || machine.isHeld) return;
      await this.#cgroups.freeze(id);
      machine.isFrozen = true;
    });
  }

  thaw(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#alive(id);
      await this.#thaw(machine);
      await machine.limit();
    });
  }

  remove(id: MachineId): Promise<void> {
    return this.#mutex.run(id, async () => {
      const machine = this.#machines.get(id);
      if (machine === undefined) return;
      await this.#removeFromHost(machine);
      this.#machines.delete(id);
      this.#reportEnd(machine, "removed");
    });
  }

  async stats(id: MachineId): Promise<MachineStats> {
    const machine = this.#alive(id);
    const [usage, diskBytes, egressDenied, traffic] = await Promise.all([
      this.#cgroups.usage(id),
      diskUsage(machine.paths.disk),
      this.#network.deniedCount(machine.slot),
      this.#network.traffic(machine.slot),
    ]);
    return { ...usage, diskBytes, egressDenied, ...traffic };
  }

  async diskUse(): Promise<DiskUse> {
    const { stateDir } = this.#options;
    const machines = await Promise.all(
      Array.from(this.#machines.values(), async ({ id, paths, spec }): Promise<[MachineId, number]> => {
        const volume = spec.volume === undefined ? [] : [imageOf(spec.volume.directory)];
        return [id, await allocatedBytes(stateDir, [paths.diskImage, ...volume])];
      }),
    );
    const { bavail, bsize } = await statfs(stateDir);
    return { freeBytes: bavail * bsize, machines: new Map(machines) };
  }

  volumeUsage(directory: string): Promise<number> {
    const machine = this.#machines.get(this.#volumes.get(directory) ?? "");
    return volumeUsage(directory, machine?.exit === null ? machine.paths.volume : undefined);
  }

  guest(id: MachineId): Guest {
    return this.#alive(id).guest;
  }

  onExit(listener: (id: MachineId, exit: MachineExit) => void): void {
    this.#exitListeners.push(listener);
  }

  get #cgroups(): Cgroups {
    if (this.#openCgroups === undefined) throw new RuntimeError("failed", "the driver is not open");
    return this.#openCgroups;
  }

  #engineOf(machine: LinuxMachine): Engine {
    if (this.#openEngines === undefined) throw new RuntimeError("failed", "the driver is not open");
    return this.#openEngines[machine.isolation];
  }

  #alive(id: MachineId): LinuxMachine {
    const machine = this.#machines.get(id);
    if (machine === undefined) throw new RuntimeError("not_found", "there is no such machine");
    if (machine.exit !== null) throw new RuntimeError("not_running", "the machine has ended");
    return machine;
  }

  #machineIn(slot: number): MachineId | undefined {
    for (const machine of this.#machines.values()) if (machine.slot === slot) return machine.id;
    return undefined;
  }

  #register(machine: LinuxMachine): void {
    this.#machines.set(machine.id, machine);
    this.#slots.add(machine.slot);
    if (machine.spec.volume !== undefined) this.#volumes.set(machine.spec.volume.directory, machine.id);
    machine.connections.on("gone", () =>
      this.#inBackground("guest_gone", machine, this.#handleDisconnect(machine)),
    );
  }

  /** Records the change before it is made, so that a restarted server finds the intended state. */
  async #change(machine: LinuxMachine, change: Partial<MachineSpec>): Promise<void> {
    const spec = { ...machine.spec, ...change };
    await writeRecord(machine.paths.record, { ...machine.record, spec }, { durable: false });
    machine.spec = spec;
  }

  async #thaw(machine: LinuxMachine): Promise<void> {
    await this.#cgroups.thaw(machine.id);
    machine.isFrozen = false;
    if (!machine.isHeld) return;
    try {
      const runsc = this.#runsc.path(machine.runtimeBuild);
      await resumeMachine({ ...this.#options, runsc, cgroups: this.#cgroups }, machine);
    } catch (error) {
      await this.#endIfHeld(machine);
      throw error;
    }
  }

  async #checkpointNeeds({ runtimeBuild = this.#runsc.current }: LinuxMachine) {
    const runsc = this.#runsc.path(runtimeBuild);
    const reached = this.#options.reached ?? (async () => {});
    const cpuClass = await this.#ownCpuClass();
    return { ...this.#options, runsc, runtimeBuild, cpuClass, cgroups: this.#cgroups, reached };
  }

  /** Kills a machine that could not be resumed after a checkpoint, because no caller could reach it. */
  async #endIfHeld(machine: LinuxMachine): Promise<void> {
    if (!machine.isHeld) return;
    await this.#cgroups.killAll(machine.id);
    await this.#checkForEnd(machine);
  }

  /** Removes the machine from the host. The network slot becomes free once its namespace is shut. */
  async #removeFromHost(machine: LinuxMachine): Promise<void> {
    this.#removing.add(machine);
    machine.connections.removeAllListeners("gone");
    await machine.connections.close();
    await cleanUp(this.#cgroups, machine.id, machine.paths);
    await this.#users.release(machine.id);
    if (machine.spec.volume !== undefined) this.#volumes.delete(machine.spec.volume.directory);
    // A slot whose shutdown failed stays unused until the next `open` sweeps it.
    const detached = this.#network.detach(machine.slot).then(() => this.#slots.delete(machine.slot));
    this.#inBackground("detach", machine, detached);
  }

  /** Handles a guest that has disconnected: its machine ended, is about to end, or does not respond. */
  async #handleDisconnect(machine: LinuxMachine): Promise<void> {
    const deadline = performance.now() + SILENCE_MS;
    while (performance.now() < deadline) {
      await this.#checkForEnd(machine);
      if (machine.exit !== null || machine.isFrozen || machine.isHeld || machine.connections.isReady) return;
      await sleep(50);
    }
    // No caller can reach the machine any more, so it must not keep using the host.
    await this.#cgroups.killAll(machine.id);
    await this.#checkForEnd(machine);
  }

  /**
   * Kills a gVisor machine that exceeded its headroom. cgroup v1 has no `memory.oom.group`, so the kernel kills one
   * process. A sentry whose helper was killed hangs forever with open connections and its memory (seen: `oom_kill 1`,
   * `under_oom 0`, usage at the limit).
   */
  async #killBroken(machine: LinuxMachine): Promise<void> {
    if (machine.isolation !== "gvisor" || machine.exit !== null || machine.isFrozen) return;
    if (!(await this.#cgroups.oomKilled(machine.id))) return;
    await this.#cgroups.killAll(machine.id);
    await this.#checkForEnd(machine);
  }

  /**
   * Reads the control group of each machine, which costs some microseconds. A guest's connection reports a death
   * sooner, but a machine may die while it has no connection.
   */
  async #findDead(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    try {
      for (const machine of this.#machines.values()) {
        // A held machine has no processes, because its checkpoint ended them.
        if (machine.isHeld) continue;
        await this.#checkForEnd(machine);
        if (this.#cgroups.layout.version === "v1")
          this.#inBackground("broken", machine, this.#killBroken(machine));
      }
    } catch (error) {
      this.#options.log("background_failed", { event: "dead", error });
    } finally {
      this.#isLooking = false;
    }
  }

  /** Checks whether the machine has ended. */
  async #checkForEnd(machine: LinuxMachine): Promise<void> {
    if (machine.exit !== null || (await this.#cgroups.processes(machine.id)).length > 0) return;
    const outOfMemory = await this.#cgroups.oomKilled(machine.id);
    // A machine that is being removed ends with the reason `removed`.
    if (!this.#machines.has(machine.id) || this.#removing.has(machine)) return;
    this.#reportEnd(machine, outOfMemory ? "out_of_memory" : "failed");
    await machine.connections.close();
  }

  #reportEnd(machine: LinuxMachine, reason: MachineExit["reason"]): void {
    if (machine.exit !== null) return;
    machine.exit = { reason, at: new Date() };
    this.#options.log("machine_ended", { machine: machine.id, reason });
    // After a removal, the slot is shut, or another machine uses it.
    if (reason !== "removed" && machine.spec.privateNetwork?.serves !== undefined) {
      this.#inBackground("withdraw", machine, this.#network.withdraw(machine.slot));
    }
    for (const listener of this.#exitListeners) listener(machine.id, machine.exit);
  }

  #inBackground(event: string, machine: LinuxMachine, work: Promise<unknown>): void {
    const logged = work.catch((error: unknown) => {
      this.#options.log("background_failed", { event, machine: machine.id, error });
    });
    this.#background.add(logged);
    void logged.finally(() => this.#background.delete(logged));
  }

  /** Adopts machines with a record, and removes other leftovers of earlier processes. */
  async #adopt(found: Awaited<ReturnType<typeof readRecords>>): Promise<void> {
    const known = found.flatMap(({ record }) => (record === undefined ? [] : [record]));
    await Promise.all(known.map((record) => this.#adoptOne(record)));
    await this.#network.sweep(new Set(known.map(({ slot }) => slot)));
    const leftovers = new Set([
      ...found.map(({ id }) => id),
      ...(await readdir(this.#host.run)),
      ...(await this.#cgroups.list()),
    ]);
    const isLeftover = (id: string) => !this.#machines.has(id) && isMachineId(id);
    await Promise.all([...leftovers].filter(isLeftover).map((id) => this.#leftovers.remove(id)));
    const remaining = new Set(this.#leftovers.remaining);
    await this.#users.open((id) => this.#machines.has(id) || remaining.has(id));
  }

  async #removeLeftover(id: MachineId): Promise<void> {
    await cleanUp(this.#cgroups, id, machinePaths(this.#host, id), LEFTOVER_TIMEOUT_MS);
    await this.#users.release(id);
    this.#options.log("leftover_removed", { machine: id });
  }

  async #adoptOne(record: MachineRecord): Promise<void> {
    const machine = new LinuxMachine(this.#host, record);
    this.#register(machine);
    machine.isFrozen = await this.#cgroups.isFrozen(machine.id);
    if ((await this.#cgroups.processes(machine.id)).length > 0) {
      await mkdir(machine.paths.guestDirectory, { recursive: true });
      // Older servers made this directory accessible to every user.
      await chown(machine.paths.runDirectory, 0, machine.firstUser ?? 0);
      await chmod(machine.paths.runDirectory, 0o710);
      // The guest of a held machine connects again once it is thawed.
      if (!machine.isHeld) await machine.connections.listen();
    }
    await this.#checkForEnd(machine);
    this.#options.log("machine_adopted", { machine: machine.id, exit: machine.exit });
  }
}

/**
 * Returns the network's record of a machine in a group, with its service. Whether the machine lives is checked later.
 */
function memberOf(record: MachineRecord | undefined): Member[] {
  if (record?.spec.privateNetwork === undefined) return [];
  return [{ slot: record.slot, privateNetwork: record.spec.privateNetwork }];
}

/** Returns the class of processors between which a checkpoint can move: same model name and same features. */
function cpuClass(cpuinfo: string): string {
  const field = (name: string) => new RegExp(`^${name}\\s*: (.*)$`, "m").exec(cpuinfo)?.[1] ?? "";
  const features = (field("flags") || field("Features")).split(" ").toSorted().join(" ");
  const hash = createHash("sha256").update(features).digest("hex").slice(0, 8);
  return `${field("model name") || process.arch} #${hash}`;
}
