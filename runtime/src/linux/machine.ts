/**
 * The state of a live machine in the driver: record, connection, and end, if known. The host's cgroup and record are
 * authoritative; this object caches values that are slow to read.
 */
import type { Isolation, MachineExit, MachineId, MachineSpec, Resources } from "../driver.ts";
import { GuestClient } from "../guest/client.ts";
import { GuestConnections } from "../guest/connections.ts";
import { SHARED_FIRST_USER } from "../runc/users.ts";
import { waitForAll } from "../wait-for-all.ts";
import { machinePaths, type HostPaths, type MachinePaths } from "./paths.ts";
import type { MachineRecord } from "./records.ts";

export class LinuxMachine {
  readonly id: MachineId;
  readonly slot: number;
  readonly guestBuild: string;
  /** Version of the runsc that runs the machine, if known. */
  readonly runtimeBuild: string | undefined;
  readonly sharedMemoryBytes: number | undefined;
  readonly imageEnv: Record<string, string>;
  readonly paths: MachinePaths;
  /** User of the host that is root inside a native machine. */
  readonly firstUser: number | undefined;
  readonly connections: GuestConnections;
  readonly guest: GuestClient;
  spec: MachineSpec;
  isFrozen = false;
  /** Limits that were last sent to PID 1. */
  #limited: Pick<Resources, "memoryBytes" | "vcpus"> | undefined;
  /** True during a checkpoint: no task runs, and the host does not listen. */
  isHeld: boolean;
  exit: MachineExit | null = null;

  constructor(host: HostPaths, record: MachineRecord) {
    this.id = record.spec.id;
    this.slot = record.slot;
    this.imageEnv = record.imageEnv;
    this.guestBuild = record.guestBuild;
    this.runtimeBuild = record.runtimeBuild;
    this.sharedMemoryBytes = record.sharedMemoryBytes;
    this.spec = record.spec;
    this.isHeld = record.isHeld ?? false;
    this.paths = machinePaths(host, this.id);
    this.firstUser = this.isolation === "native" ? (record.firstUser ?? SHARED_FIRST_USER) : undefined;
    // Root of a native machine is an ordinary user on the host, and must own the socket to connect.
    this.connections = new GuestConnections(this.paths.guestSocket, this.firstUser);
    this.guest = new GuestClient(this.connections);
  }

  get isolation(): Isolation {
    return this.spec.isolation ?? "gvisor";
  }

  get record(): MachineRecord {
    const { slot, imageEnv, guestBuild, runtimeBuild, spec, isHeld, firstUser } = this;
    const engine = runtimeBuild === undefined ? {} : { runtimeBuild };
    const users = firstUser === undefined ? {} : { firstUser };
    const { sharedMemoryBytes } = this;
    const shared = sharedMemoryBytes === undefined ? {} : { sharedMemoryBytes };
    return { version: 1, slot, imageEnv, guestBuild, ...engine, ...shared, spec, isHeld, ...users };
  }

  /** Sends PID 1 the machine's name and the environment of every later process. */
  async configure(): Promise<void> {
    const { hostname, env } = this.spec;
    const named = this.guest.configure({ hostname, env: { ...this.imageEnv, ...env } });
    await waitForAll(named, this.limit());
  }

  /** Sends the machine's size to PID 1 of a gVisor machine. The host's kernel limits a native machine itself. */
  async limit(): Promise<void> {
    const { memoryBytes, vcpus } = this.spec.resources;
    const isSent = this.#limited?.memoryBytes === memoryBytes && this.#limited.vcpus === vcpus;
    if (this.isolation === "native" || isSent) return;
    await this.guest.limit({ memoryBytes, vcpus });
    this.#limited = { memoryBytes, vcpus };
  }
}
