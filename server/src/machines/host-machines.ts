/** The machines of one host: starts and stops the machine layer, removes machines, and watches for exits. */
import type { Logger } from "pino";
import type { Guest, ImageService, MachineExit } from "@kontor/runtime/driver.ts";
import type { Db } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import type { Capacity } from "./placement/admission.ts";
import { orderFor } from "./placement/order.ts";
import type { Host } from "./host/host.ts";
import { LogRings } from "./host/log-rings.ts";
import { DiskGuard, lookEveryMs } from "./disk/guard.ts";
import { Denials } from "./denials.ts";
import { HostImages } from "./images.ts";
import { countMachines } from "./host/metrics.ts";
import type { MachineOwners } from "./machine-owner.ts";
import { Pool } from "./placement/pool.ts";
import { reconcile } from "./reconcile.ts";
import type { Announce, ReclaimMemory, MachineEgress, Machines, MachinesApp } from "./machines.ts";
import { Sampler } from "./host/sampler.ts";
import { Suspension } from "./suspension/suspension.ts";
import { sweepSnapshots } from "./snapshots/snapshots.ts";
import { deleteRemoved, findMachine, markRemoved, type MachineRow, renewLease } from "./store.ts";

const reconcileEveryMs = 30_000;
const leaseSeconds = 15;

const beatEveryMs = 5_000;

export class HostMachines implements Machines {
  readonly host: Host;
  /** Absent if this host serves no restricted machines. */
  readonly egress: MachineEgress | undefined;
  readonly denials: Denials;
  readonly capacity: Capacity;
  readonly images: HostImages;
  /** Output of long-running processes. */
  readonly logs: LogRings;
  readonly pool: Pool;
  readonly sampler: Sampler;
  readonly suspension: Suspension;
  readonly #db: Db;
  readonly #log: Logger;
  readonly #removals = new Map<string, Promise<void>>();
  /** Services by machine, filled on first use. The image of a machine never changes. */
  readonly #services = new Map<string, ImageService | null>();
  readonly #protected = new Set<string>();
  readonly #removalListeners: ((machine: string) => void)[] = [];
  readonly #memoryReclaimers: ReclaimMemory[] = [];
  readonly #timers: NodeJS.Timeout[] = [];
  #stopCounting: (() => void) | undefined;
  #closed = false;

  constructor(deps: {
    host: Host;
    egress?: MachineEgress | undefined;
    /** Record of denied connections. Default: a new, empty record. */
    denials?: Denials | undefined;
    capacity: Capacity;
    poolCeiling: number;
    /** Seconds between a workspace's suspension and the freeze of its machines. */
    suspensionGraceSeconds: number;
    logsDirectory: string;
    db: Db;
    clock: Clock;
    log: Logger;
  }) {
    this.host = deps.host;
    this.egress = deps.egress;
    this.denials = deps.denials ?? new Denials(deps);
    this.capacity = deps.capacity;
    this.#db = deps.db;
    this.#log = deps.log;
    this.images = new HostImages(deps);
    this.logs = new LogRings({ directory: deps.logsDirectory, log: deps.log });
    this.sampler = new Sampler(deps);
    this.suspension = new Suspension({ ...deps, graceSeconds: deps.suspensionGraceSeconds });
    this.pool = new Pool({ ...deps, machines: this, ceiling: deps.poolCeiling });
  }

  /** Adopts running machines, then watches them, with the database of `app`. */
  async start(app: MachinesApp, owners: MachineOwners, announce: Announce = async () => {}): Promise<void> {
    this.#stopCounting = countMachines({ db: this.#db, host: this.host, pool: this.pool });
    await Promise.all(Object.values(owners).map((owner) => owner.onServerStart()));
    await this.suspension.read();
    await reconcile(app, owners, { atStart: true });
    await this.suspension.look(owners);
    await sweepSnapshots(app, owners);
    this.host.onExit((machine, exit) => void this.#exited(app, owners, machine, exit));
    this.#every(reconcileEveryMs, () => reconcile(app, owners, { atStart: false }));
    this.#every(beatEveryMs, () => this.#beat(app.db));
    this.#every(beatEveryMs, () => this.suspension.look(owners));
    const guard = this.#diskGuard(app.db, owners, announce);
    this.#every(lookEveryMs, () => guard.look());
    this.#every(beatEveryMs * 6, async () => this.pool.nudge());
  }

  /** Releases the host. Machines continue, and the next start adopts them. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#stopCounting?.();
    for (const timer of this.#timers) clearInterval(timer);
    this.sampler.close();
    await this.pool.close();
    await Promise.allSettled(this.#removals.values());
    await this.logs.close();
    await this.host.close();
  }

  connect(machine: string): Guest {
    return this.host.connect(machine);
  }

  /** Returns the service that the machine's image runs, if any. */
  async service(machine: string): Promise<ImageService | null> {
    const known = this.#services.get(machine);
    if (known !== undefined) return known;
    const row = await findMachine(this.#db, machine);
    if (!row || this.#removals.has(machine)) return null;
    const service = await this.host.service(row.image_id);
    this.#services.set(machine, service);
    return service;
  }

  /**
   * Returns the CPU time that a machine has used, in seconds; the last sample if the machine cannot be read any more.
   */
  async cpuSeconds(machine: string): Promise<number> {
    const stats = await this.host.stats(machine).catch(() => this.sampler.latest(machine));
    return stats?.cpuSeconds ?? 0;
  }

  /** Removes a machine and then its row. Safe to call again; concurrent calls share one removal. */
  destroy(row: MachineRow): Promise<void> {
    const inFlight = this.#removals.get(row.id);
    if (inFlight) return inFlight;
    for (const listener of this.#removalListeners) listener(row.id);
    const removal = this.#remove(row).finally(() => this.#removals.delete(row.id));
    this.#removals.set(row.id, removal);
    return removal;
  }

  /** Removes a machine in the background. `reconcile` retries a failure. */
  destroyLater(row: MachineRow): void {
    this.destroy(row).catch((error: unknown) => {
      this.#log.warn({ machine: row.id, err: error }, "could not remove a machine; reconcile retries it");
    });
  }

  /** Calls back when the removal of a machine begins; from then on the machine has no owner. */
  onRemoval(listener: (machine: string) => void): void {
    this.#removalListeners.push(listener);
  }

  /** Registers a function that frees memory. The function is called when no machine fits. */
  onLowMemory(give: ReclaimMemory): void {
    this.#memoryReclaimers.push(give);
  }

  /** Frees memory for another machine. False if no owner can free memory. */
  async reclaimMemory(): Promise<boolean> {
    for (const give of this.#memoryReclaimers) if (await give()) return true;
    return false;
  }

  isBeingRemoved(machine: string): boolean {
    return this.#removals.has(machine);
  }

  /** Protects machines from `reconcile` while `work` decides whether they get an owner or are removed. */
  async whileProtected<T>(machines: readonly string[], work: () => Promise<T>): Promise<T> {
    for (const machine of machines) this.#protected.add(machine);
    try {
      return await work();
    } finally {
      for (const machine of machines) this.#protected.delete(machine);
    }
  }

  isProtected(machine: string): boolean {
    return this.#protected.has(machine);
  }

  /**
   * Creates the disk guard. The guard uses the database of upkeep, so that it works even if requests hold every other
   * connection.
   */
  #diskGuard(db: Db, owners: MachineOwners, announce: Announce): DiskGuard {
    return new DiskGuard({
      host: this.host,
      db,
      log: this.#log,
      isSuspended: (machine) => this.suspension.holds(machine),
      reserveBytes: this.capacity.diskReserveBytes,
      announce: async (hold) => {
        const { owner_kind: kind, owner_id: id } = hold.machine;
        const owner = kind === "pool" || id === null ? undefined : await owners[kind]?.describe?.(id);
        if (owner !== undefined) await announce(owner, hold);
      },
    });
  }

  async #remove(row: MachineRow): Promise<void> {
    this.sampler.forget(row.id);
    this.#services.delete(row.id);
    await markRemoved(this.#db, row.id);
    await this.host.remove({ ...orderFor(row), hostEpoch: this.host.epoch });
    await deleteRemoved(this.#db, row.id);
    this.denials.forget(row.id);
  }

  async #exited(app: MachinesApp, owners: MachineOwners, machine: string, exit: MachineExit): Promise<void> {
    try {
      const row = await findMachine(this.#db, machine);
      if (!row || row.desired === "removed" || this.host.isStarting(machine)) return;
      // The machine was restored and has no owner yet. The restore fails, and its owner stays paused.
      if (row.snapshot_id !== null) return await this.destroy(row);
      const cpuSeconds = await this.cpuSeconds(machine);
      if (row.owner_kind !== "pool" && row.owner_id !== null) {
        await owners[row.owner_kind]?.ended(row.owner_id, { exit, neverStarted: false, cpuSeconds });
      }
      await this.destroy(row);
      if (row.owner_kind === "pool") this.pool.nudge();
    } catch (error) {
      app.log.error({ machine, err: error }, "a machine ended, and its cleanup failed; reconcile retries it");
    }
  }

  async #beat(db: Db): Promise<void> {
    if (await renewLease(db, this.host, leaseSeconds)) return;
    this.#log.fatal({ host: this.host.id }, "another process registered this host; this one must stop");
    process.kill(process.pid, "SIGTERM");
  }

  #every(ms: number, work: () => Promise<void>): void {
    let running = false;
    const timer = setInterval(() => {
      if (running || this.#closed) return;
      running = true;
      work()
        .catch((error: unknown) =>
          this.#log.error({ err: error }, "a periodic task of the machine layer failed"),
        )
        .finally(() => (running = false));
    }, ms);
    this.#timers.push(timer.unref());
  }
}

export { leaseSeconds };
