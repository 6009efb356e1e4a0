/**
 * A host as the rest of the server sees it: somewhere machines run. One host lives in this process (`LocalHost`);
 * more hosts are the same interface over the network. That is why every changing call carries the order it stems
 * from, and why no path, pid or socket crosses this line.
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
  /** The epoch the host had when the order was written; a host of a later epoch refuses it. */
  hostEpoch: number;
  /** The machine's generation; an older one gets `stale_generation`. */
  generation: number;
}

/** A volume as orders name it; where in its region the bytes lie is the host's own affair. */
export interface HostVolume {
  id: string;
  region: string;
  sizeBytes: number;
}

export interface StartSpec {
  /** True where the image's service has no business: what is built on an image is not used. */
  isBuild?: boolean;
  image: string;
  /** What holds it; `gvisor` where absent. */
  isolation?: Isolation;
  resources: Resources;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
  /** `isNew`: nothing of it was ever made, so that this start makes it. */
  volume?: HostVolume & { isNew: boolean };
  /** Whom it reaches, and what it serves to them. */
  privateNetwork?: PrivateNetwork;
}

export interface ClaimSpec {
  /** What the machine was made from. */
  image: string;
  resources: Omit<Resources, "diskBytes">;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
}

/** What a host says of a machine it wrote down. */
export interface SnapshotFacts {
  bytes: number;
  /** Of the list of its files' hashes. */
  sha256: string;
  runtimeBuild: string;
  cpuClass: string;
}

export interface HostImage {
  id: string;
  sizeBytes: number;
  contents: Record<string, string>;
  substituted: boolean;
  /** Version inside, if `substituted`. */
  substitute: string | null;
}

/** See `AppBuild`; where packages come from is the host's own affair. */
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
  /** Names of the images the host knows how to make. */
  imageNames(): string[];
  /** The same of those the server's own machines run: nobody asks for them by name. */
  innerImageNames(): string[];
  /** The images that were built here, of machines. */
  builtImages(): Promise<HostImage[]>;
  /** An image of any origin, or undefined. */
  findImage(id: string): Promise<HostImage | undefined>;
  /** Makes an image of a machine's files as they are now; ends its processes. On failure nothing of it is left. */
  captureImage(order: Order, image: string, options: { timeoutMs: number }): Promise<HostImage>;
  /** No machine and no snapshot needs it. Also of what is not there. */
  removeImage(image: string): Promise<void>;
  /**
   * Makes an image of a directory of this host and a Dockerfile, and one that machines boot from. Fails with
   * `image_failed`, `too_large`, `no_capacity` and `timeout` for what its owner can mend; on failure nothing is left.
   */
  buildImage(spec: AppImageSpec, hooks: BuildHooks): Promise<BuiltAppImage>;
  /** Makes the same of an image that was downloaded into a directory. Fails as `buildImage` does. */
  importImage(spec: ImageImport, hooks: Pick<BuildHooks, "log" | "signal">): Promise<BuiltAppImage>;
  /** Makes a base image of builds if it is absent. Fails with `image_failed`, also for a name that no recipe has. */
  prepareBase(name: string, progress: Progress, signal: AbortSignal): Promise<void>;
  /** Ids of the images that were built so, halves of a removal included. */
  appImages(): Promise<string[]>;
  /** Looks it through for known faults; `cwd` is where its app lies. Fails with `not_found`. */
  scanAppImage(image: string, cwd: string): Promise<Scan>;
  /** No machine and no snapshot needs it. Also of what is not there. */
  removeAppImage(image: string): Promise<void>;
  /** Takes what builds keep for the next ones down to what it may take. */
  pruneBuildCaches(): Promise<void>;
  /** What runs in every machine of an image from its start on, if anything does. */
  service(image: string): Promise<ImageService | null>;
  /**
   * Boots a machine; it runs when this returns, and its image's service is on its way if anybody is to use it. One that
   * is made ahead waits while anybody waits for a start, and has its service warm when this returns.
   */
  start(order: Order, spec: StartSpec, options?: { isAhead: boolean }): Promise<void>;
  /**
   * Thaws a warm machine and makes it somebody's: limits, network and environment are in force when this returns, for
   * its service as well. `isAgain`: it was somebody's before, who may have ended the service.
   */
  claim(order: Order, spec: ClaimSpec, options?: { isAgain: boolean }): Promise<void>;
  freeze(order: Order): Promise<void>;
  thaw(order: Order): Promise<void>;
  setResources(order: Order, resources: Omit<Resources, "diskBytes">): Promise<void>;
  remove(order: Order): Promise<void>;
  /** Writes a machine to this host's disk and holds it: `remove` frees its memory, `thaw` lets it go on. */
  pause(order: Order, snapshot: string): Promise<SnapshotFacts>;
  /**
   * Writes a machine to this host's disk while it goes on, but for the moment that takes. Unless it `isDurable` it is
   * good for restores by this process alone.
   */
  capture(order: Order, snapshot: string, options: { isDurable: boolean }): Promise<SnapshotFacts>;
  /** Gives a snapshot's bytes another name, under which they stay when the first is dropped. False where they are gone. */
  share(snapshot: string, as: string): Promise<boolean>;
  /**
   * Boots a machine from a snapshot of this host, which stays; it runs when this returns. `isClone`: it is somebody
   * else's than the machine that was written down, and its image's service is told.
   */
  resume(order: Order, snapshot: string, spec: StartSpec, options?: { isClone: boolean }): Promise<void>;
  /** Of what is not there too. */
  dropSnapshot(snapshot: string): Promise<void>;
  /** Everything that takes the place of snapshots, halves of them included. */
  listSnapshots(): Promise<string[]>;
  /** Bytes the files of a volume take; zero where none was made. */
  volumeUsage(volume: Pick<HostVolume, "id" | "region">): Promise<number>;
  /** To another region of this host: whole and compared when this returns, and still where it was. Nobody has it. */
  copyVolume(
    volume: Pick<HostVolume, "id" | "region">,
    to: string,
    signal?: AbortSignal,
  ): Promise<{ bytes: number; sha256: string }>;
  /** Of what is not there too. */
  dropVolume(volume: Pick<HostVolume, "id" | "region">): Promise<void>;
  /** Everything that takes the place of volumes; halves of copies have an id that no volume has. */
  listVolumes(): Promise<Pick<HostVolume, "id" | "region">[]>;
  /** Free bytes of the disk that machines write to, and the bytes that each machine occupies. */
  diskUse(): Promise<DiskUse>;
  stats(machine: string): Promise<MachineStats>;
  /** The connection to the machine's PID 1. */
  connect(machine: string): Guest;
  /** True while a start of this machine is under way in this process. */
  isStarting(machine: string): boolean;
  onExit(listener: (machine: string, exit: MachineExit) => void): void;
  close(): Promise<void>;
}
