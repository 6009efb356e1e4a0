/**
 * The machines of this host, as the APIs use them. A machine has a row with its desired state, and an instance on the
 * host with its observed state. This folder is the sole caller of the runtime and keeps both states in agreement: it
 * admits, claims from a warm pool, samples, reconciles and removes. A committed reservation is either started or ended,
 * and a removal is retried until it succeeds. Owners decide who may have a machine.
 */
import type { Guest, ImageService } from "@kontor/runtime/driver.ts";
import type { Logger } from "pino";
import type { Clock } from "#lib/clock.ts";
import type { SecretBox } from "#lib/secret-box.ts";
import type { Db } from "#schema.ts";
import type { Denials } from "./denials.ts";
import type { Host } from "./host/host.ts";
import type { LogRings } from "./host/log-rings.ts";
import type { Sampler } from "./host/sampler.ts";
import type { DiskHold } from "./disk/guard.ts";
import type { MachineOwners, OwnerLabel } from "./machine-owner.ts";
import type { HostImages } from "./images.ts";
import type { Capacity } from "./placement/admission.ts";
import type { Shape } from "./placement/shape.ts";
import type { MachineRow } from "./store.ts";
import type { Suspension } from "./suspension/suspension.ts";

/** The egress proxy, as owners of restricted machines use it. */
export interface MachineEgress {
  /** Applies a changed allowlist. The new list is in force on return, also for open connections. */
  reload(machine: string): Promise<void>;
}

/** Warm machines that wait for an owner, by shape. */
export interface WarmPool {
  /** Keeps at least `floor` machines of this shape. */
  keep(shape: Shape, floor: number): void;
  /** Counts a request for a machine of this shape. */
  countRequest(shape: Shape): void;
  /** Removes the waiting machines of a deleted template. */
  removeTemplate(template: string): Promise<void>;
  /** Refills the pool after the delay. */
  nudge(delayMs?: number): void;
  /** Resolves when the pool is full; for tests and benchmarks. */
  waitUntilFull(): Promise<void>;
}

/** Frees memory on the host. Resolves to true if a machine was moved to disk, so that another attempt may succeed. */
export type ReclaimMemory = () => Promise<boolean>;

/** Notifies a workspace that one of its machines was frozen or ended. */
export type Announce = (owner: OwnerLabel, hold: DiskHold) => Promise<void>;

/** Parts of the server that the machine layer uses. */
export interface MachinesApp {
  db: Db;
  machines: Machines;
  secrets: SecretBox;
  clock: Clock;
  log: Logger;
}

export interface Machines {
  readonly host: Host;
  /** Absent if this host serves no restricted machines. */
  readonly egress: MachineEgress | undefined;
  readonly denials: Denials;
  readonly capacity: Capacity;
  readonly images: HostImages;
  /** Output of long-running processes. */
  readonly logs: LogRings;
  readonly pool: WarmPool;
  readonly sampler: Sampler;
  readonly suspension: Suspension;
  /** Adopts running machines, then watches them, with the database of `app`. */
  start(app: MachinesApp, owners: MachineOwners, announce?: Announce): Promise<void>;
  /** Releases the host. Machines continue, and the next start adopts them. */
  close(): Promise<void>;
  connect(machine: string): Guest;
  /** Returns the service that the machine's image runs, if any. */
  service(machine: string): Promise<ImageService | null>;
  /** Returns the CPU time that a machine has used, in seconds; the last sample if the machine is gone. */
  cpuSeconds(machine: string): Promise<number>;
  /** Removes a machine and then its row. Safe to call again; concurrent calls share one removal. */
  destroy(row: MachineRow): Promise<void>;
  /** Removes a machine in the background. `reconcile` retries a failure. */
  destroyLater(row: MachineRow): void;
  /** Calls back when the removal of a machine begins. */
  onRemoval(listener: (machine: string) => void): void;
  /** Registers a function that frees memory. The function is called when no machine fits. */
  onLowMemory(give: ReclaimMemory): void;
  reclaimMemory(): Promise<boolean>;
  /** True while the machine is being removed. */
  isBeingRemoved(machine: string): boolean;
  /** Protects machines from `reconcile` while `work` decides whether they get an owner or are removed. */
  whileProtected<T>(machines: readonly string[], work: () => Promise<T>): Promise<T>;
  isProtected(machine: string): boolean;
}
