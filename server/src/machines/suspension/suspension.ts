/**
 * Freezes the machines of suspended workspaces, and thaws them once the suspension ends.
 *
 * A pass runs every few seconds. The pass marks each workspace whose grace period is over as held, then freezes its
 * machines. Processes, memory and files stay as they are. When an operator ends the suspension, one transaction removes
 * the mark and moves deadlines by the time that the workspace was held. The machines are thawed after it. A server that
 * dies in between leaves the mark in the right state. The next server freezes the machines of a marked workspace, and
 * thaws the others as it adopts them.
 */
import type { Transaction } from "kysely";
import type { Logger } from "pino";
import type { Database, Db } from "#schema.ts";
import type { Clock } from "#lib/clock.ts";
import type { Host } from "../host/host.ts";
import { orderFor } from "../placement/order.ts";
import type { MachineOwners } from "../machine-owner.ts";
import { findMachine, type MachineRow, machinesOfHost } from "../store.ts";
import { findSuspended, markHeld, release } from "./store.ts";

/** Moves a workspace's deadlines by the time that it was held. */
export type MoveDeadlines = (
  tx: Transaction<Database>,
  held: { workspaceId: string; ms: number },
) => Promise<void>;

interface Deps {
  host: Host;
  db: Db;
  clock: Clock;
  log: Logger;
  graceSeconds: number;
}

export class Suspension {
  readonly #deps: Deps;
  /** Workspaces whose machines must be frozen. */
  #held: ReadonlySet<string> = new Set();
  /** Frozen machines, including those whose thaw failed so far. */
  readonly #frozen = new Map<string, { workspaceId: string }>();
  /** Cached workspaces of machines, because a machine never changes its owner and a suspension may last for months. */
  readonly #workspaces = new Map<string, string>();
  readonly #moves: MoveDeadlines[] = [];
  readonly #listeners: ((machine: string) => void)[] = [];
  #looking: Promise<void> | undefined;

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  /** Registers a function that runs before a workspace's machines are thawed. */
  onRelease(move: MoveDeadlines): void {
    this.#moves.push(move);
  }

  /** Registers a function that runs when a machine is frozen. */
  onHold(listener: (machine: string) => void): void {
    this.#listeners.push(listener);
  }

  /** True if the workspace is held. The value comes from memory and is at most a few seconds old. */
  isHeld(workspaceId: string): boolean {
    return this.#held.has(workspaceId);
  }

  get heldWorkspaces(): readonly string[] {
    return [...this.#held];
  }

  /** True if the machine is frozen because its workspace is suspended. */
  holds(machine: string): boolean {
    return this.#frozen.has(machine);
  }

  /** Reads the suspended workspaces without freezing machines. Runs before an earlier server's machines are adopted. */
  async read(): Promise<void> {
    const { db, clock, graceSeconds } = this.#deps;
    const now = clock.now();
    const due = new Date(now.getTime() - graceSeconds * 1000);
    const rows = await findSuspended(db);
    const held = rows.filter(({ suspended_at: at }) => at !== null && at <= due);
    for (const { id, held_since } of held) if (held_since === null) await markHeld(db, id, now);
    this.#held = new Set(held.map(({ id }) => id));
  }

  /** Runs one pass over all workspaces and machines. Concurrent calls share one pass. */
  look(owners: MachineOwners): Promise<void> {
    this.#looking ??= this.#look(owners).finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async #look(owners: MachineOwners): Promise<void> {
    await this.read();
    if (this.#held.size > 0) await this.#freezeAll(owners);
    await this.#releaseAll();
    await this.#thawAll();
  }

  async #freezeAll(owners: MachineOwners): Promise<void> {
    const { db, host } = this.#deps;
    const whatFailed = "freezing a machine of a suspended workspace failed; it is retried";
    // Runs in parallel, because a freeze waits for a snapshot of its machine.
    const freezing: Promise<void>[] = [];
    const states = new Map((await host.list()).map(({ machine, state }) => [machine, state]));
    const rows = await machinesOfHost(db, host.id);
    const known = new Set(rows.map(({ id }) => id));
    for (const id of this.#workspaces.keys()) if (!known.has(id)) this.#workspaces.delete(id);
    for (const row of rows) {
      // A claim, wake or snapshot that started before the suspension may thaw its machine afterwards.
      const isFrozen = this.#frozen.has(row.id) && states.get(row.id) === "frozen";
      if (isFrozen || host.isStarting(row.id)) continue;
      await this.#try(row, whatFailed, async () => {
        const workspaceId = await this.#heldWorkspaceOf(owners, row);
        if (workspaceId !== undefined)
          freezing.push(this.#try(row, whatFailed, () => this.#freeze(row, workspaceId)));
      });
    }
    await Promise.all(freezing);
  }

  async #freeze(row: MachineRow, workspaceId: string): Promise<void> {
    const { host } = this.#deps;
    await host.freeze({ ...orderFor(row), hostEpoch: host.epoch });
    this.#frozen.set(row.id, { workspaceId });
    for (const listener of this.#listeners) listener(row.id);
  }

  /** True if the machine belongs to a held workspace. */
  async isToBeHeld(owners: MachineOwners, row: MachineRow): Promise<boolean> {
    return (await this.#heldWorkspaceOf(owners, row)) !== undefined;
  }

  /** Queries owners only while a workspace is held. Skips machines being removed, which owners may no longer know. */
  async #heldWorkspaceOf(owners: MachineOwners, row: MachineRow): Promise<string | undefined> {
    if (this.#held.size === 0 || !mayFreeze(row)) return undefined;
    const workspaceId = this.#workspaces.get(row.id) ?? (await workspaceOf(owners, row));
    if (workspaceId !== undefined) this.#workspaces.set(row.id, workspaceId);
    return workspaceId !== undefined && this.isHeld(workspaceId) ? workspaceId : undefined;
  }

  async #releaseAll(): Promise<void> {
    for (const { id, suspended_at, held_since } of await findSuspended(this.#deps.db)) {
      // A new suspension ends the old one: its machines run until the new grace period is over.
      if (held_since === null || (suspended_at !== null && this.isHeld(id))) continue;
      await this.#release(id, held_since);
    }
  }

  /** A failure of one workspace does not stop the others. The next pass retries it. */
  async #release(id: string, since: Date): Promise<void> {
    const { db, clock, log } = this.#deps;
    const ms = Math.max(0, clock.now().getTime() - since.getTime());
    try {
      await db.transaction().execute(async (tx) => {
        if (!(await release(tx, id))) return;
        for (const move of this.#moves) await move(tx, { workspaceId: id, ms });
      });
      log.info({ workspace: id, heldMs: ms }, "a workspace was resumed after its suspension");
    } catch (error) {
      log.error(
        { workspace: id, err: error },
        "resuming a workspace after its suspension failed; it is retried",
      );
    }
  }

  async #thawAll(): Promise<void> {
    const { db, host } = this.#deps;
    for (const [id, { workspaceId }] of this.#frozen) {
      const row = await findMachine(db, id);
      if (row === undefined || row.desired === "removed") this.#frozen.delete(id);
      if (row === undefined || row.desired === "removed" || this.isHeld(workspaceId)) continue;
      await this.#try(row, "thawing a machine after a suspension failed; it is retried", async () => {
        // A machine that its owner keeps frozen, such as a sleeping app, stays frozen.
        if (row.desired === "running") await host.thaw({ ...orderFor(row), hostEpoch: host.epoch });
        this.#frozen.delete(id);
      });
    }
  }

  /** A failure of one machine does not stop the others. The next pass retries it. */
  async #try(row: MachineRow, whatFailed: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.#deps.log.warn({ machine: row.id, owner: row.owner_id, err: error }, whatFailed);
    }
  }
}

/** Excludes builds, which end by their own deadline, and pooled machines, which belong to no workspace. */
const mayFreeze = ({ owner_kind, desired, snapshot_id }: MachineRow): boolean =>
  owner_kind !== "pool" && owner_kind !== "build" && desired !== "removed" && snapshot_id === null;

async function workspaceOf(owners: MachineOwners, row: MachineRow): Promise<string | undefined> {
  if (row.owner_kind === "pool" || row.owner_id === null) return undefined;
  return (await owners[row.owner_kind]?.describe?.(row.owner_id))?.workspaceId;
}
