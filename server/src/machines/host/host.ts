/**
 * The host that runs machines, as the rest of the server sees it. `LocalHost` in this process is the only host today;
 * further hosts would implement the same interface over the network. Therefore every changing call carries its order,
 * and no path, pid or socket crosses this interface.
 */
import type {
  DiskUse,
  Guest,
  HostFacts,
  ImageService,
  Isolation,
  MachineExit,
  MachineState,
  MachineStats,
  NetworkMode,
  PrivateNetwork,
  Progress,
  Resources,
} from "@kontor/runtime/driver.ts";
import type { AppBuild, BuildHooks, ImageImport } from "@kontor/runtime/oci/builder.ts";
import type { Scan } from "@kontor/runtime/oci/scan.ts";
import type { ImageConfig } from "@kontor/runtime/oci/store.ts";

export interface Order {
  machine: string;
  /** The host's epoch when the order was written; a host of a later epoch refuses the order. */
  hostEpoch: number;
  /** The machine's generation; an order with an older generation fails with `stale_generation`. */
  generation: number;
}

/** A volume as orders name it. The host decides where in the region the bytes are stored. */
export interface HostVolume {
  id: string;
  region: string;
  sizeBytes: number;
}

export interface StartSpec {
  /** True for a build on the image: the image's service does not start. */
  isBuild?: boolean;
  image: string;
  /** Isolation engine; `gvisor` if absent. */
  isolation?: Isolation;
  resources: Resources;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
  /** `isNew`: the volume has no files yet, and this start creates them. */
  volume?: HostVolume & { isNew: boolean };
  /** The private network that the machine belongs to, and the services that it offers there. */
  privateNetwork?: PrivateNetwork;
}

export interface ClaimSpec {
  /** Image of the machine. */
  image: string;
  resources: Omit<Resources, "diskBytes">;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
}

/** Facts about a snapshot that the host wrote. */
export interface SnapshotFacts {
  bytes: number;
  /** Hash over the list of its files' hashes. */
  sha256: string;
  runtimeBuild: string;
  cpuClass: string;
}

export interface HostImage {
  id: string;
  sizeBytes: number;
  contents: Record<string, string>;
  substituted: boolean;
  /** Version of the program in the image, if `substituted`. */
  substitute: string | null;
}

/** See `AppBuild`; the host itself chooses the package sources. */
export type AppImageSpec = Omit<AppBuild, "sources">;

export interface BuiltAppImage {
  digest: string;
  sizeBytes: number;
  config: ImageConfig;
}

export interface Host {
  readonly id: string;
  readonly epoch: number;
  facts(): Promise<HostFacts>;
  list(): Promise<{ machine: string; state: MachineState; exit: MachineExit | null }[]>;
  ensureImage(name: string, progress?: Progress): Promise<HostImage>;
  /** Names of the images that the host can make. */
  imageNames(): string[];
  /** Names of the images for the server's own machines; callers cannot request them. */
  innerImageNames(): string[];
  /** Images that were built from machines on this host. */
  builtImages(): Promise<HostImage[]>;
  /** Finds an image of any origin. */
  findImage(id: string): Promise<HostImage | undefined>;
  /** Makes an image of a machine's current files and ends its processes. Removes all traces on failure. */
  captureImage(order: Order, image: string, options: { timeoutMs: number }): Promise<HostImage>;
  /** Removes an image that no machine and no snapshot needs. A missing image is no error. */
  removeImage(image: string): Promise<void>;
  /**
   * Builds an image from a directory of this host and a Dockerfile, so that machines can boot from it. Fails with
   * `image_failed`, `too_large`, `no_capacity` and `timeout` for faults that its owner can fix. Removes all traces on
   * failure.
   */
  buildImage(spec: AppImageSpec, hooks: BuildHooks): Promise<BuiltAppImage>;
  /**
   * Makes the same kind of image from an image that was downloaded into a directory. Fails as `buildImage` does.
   */
  importImage(spec: ImageImport, hooks: Pick<BuildHooks, "log" | "signal">): Promise<BuiltAppImage>;
  /**
   * Makes a base image of builds if it is absent. Fails with `image_failed`, also if no recipe has this name.
   */
  prepareBase(name: string, progress: Progress, signal: AbortSignal): Promise<void>;
  /** Ids of the images made by `buildImage` and `importImage`, including half-removed ones. */
  appImages(): Promise<string[]>;
  /** Scans the image for known vulnerabilities; `cwd` is the directory of its app. Fails with `not_found`. */
  scanAppImage(image: string, cwd: string): Promise<Scan>;
  /** Removes an app's image that no machine and no snapshot needs. A missing image is no error. */
  removeAppImage(image: string): Promise<void>;
  /** Prunes the caches of builds to their maximum size. */
  pruneBuildCaches(): Promise<void>;
  /** The service that runs in every machine of an image from its start, if any. */
  service(image: string): Promise<ImageService | null>;
  /**
   * Boots a machine. On return it runs, and its image's service is starting if the machine has a user. A start ahead of
   * demand yields to other starts, and its service is warm on return.
   */
  start(order: Order, spec: StartSpec, options?: { isAhead: boolean }): Promise<void>;
  /**
   * Thaws a warm machine for its owner. Limits, network and environment are in force on return, for its service as
   * well. `isAgain`: the owner had the machine before and may have ended the service.
   */
  claim(order: Order, spec: ClaimSpec, options?: { isAgain: boolean }): Promise<void>;
  freeze(order: Order): Promise<void>;
  thaw(order: Order): Promise<void>;
  setResources(order: Order, resources: Omit<Resources, "diskBytes">): Promise<void>;
  remove(order: Order): Promise<void>;
  /**
   * Writes a machine to this host's disk and keeps it frozen: `remove` frees its memory, `thaw` continues it.
   */
  pause(order: Order, snapshot: string): Promise<SnapshotFacts>;
  /**
   * Writes a machine to this host's disk and continues it afterwards. Unless `isDurable`, only this process can restore
   * the snapshot.
   */
  capture(order: Order, snapshot: string, options: { isDurable: boolean }): Promise<SnapshotFacts>;
  /**
   * Gives a snapshot's bytes a second name. The bytes stay under the second name when the first is dropped. False if
   * the bytes are missing.
   */
  share(snapshot: string, as: string): Promise<boolean>;
  /**
   * Boots a machine from a snapshot of this host, and keeps the snapshot. The machine runs on return. `isClone`: the
   * machine has another owner than the original, and its image's service is informed.
   */
  resume(order: Order, snapshot: string, spec: StartSpec, options?: { isClone: boolean }): Promise<void>;
  /** Deletes a snapshot. A missing snapshot is no error. */
  dropSnapshot(snapshot: string): Promise<void>;
  /** Lists everything that is stored as a snapshot, including incomplete snapshots. */
  listSnapshots(): Promise<string[]>;
  /** Returns the bytes that the files of a volume occupy. Zero if the volume has no files yet. */
  volumeUsage(volume: Pick<HostVolume, "id" | "region">): Promise<number>;
  /**
   * Copies a volume that no machine uses to another region of this host. On return the copy is complete and compared,
   * and the original is still there.
   */
  copyVolume(
    volume: Pick<HostVolume, "id" | "region">,
    to: string,
    signal?: AbortSignal,
  ): Promise<{ bytes: number; sha256: string }>;
  /** Deletes a volume. A missing volume is no error. */
  dropVolume(volume: Pick<HostVolume, "id" | "region">): Promise<void>;
  /** Lists everything that is stored as a volume. The list includes incomplete copies, whose ids no volume has. */
  listVolumes(): Promise<Pick<HostVolume, "id" | "region">[]>;
  /** Returns the free bytes of the disk that machines write to, and the bytes that each machine occupies. */
  diskUse(): Promise<DiskUse>;
  stats(machine: string): Promise<MachineStats>;
  /** Returns the connection to the machine's PID 1. */
  connect(machine: string): Guest;
  /** True while a start of this machine is under way in this process. */
  isStarting(machine: string): boolean;
  onExit(listener: (machine: string, exit: MachineExit) => void): void;
  close(): Promise<void>;
}
