/**
 * Freezes the machines of suspended workspaces, and thaws them once the suspension ends.
 *
 * Every few seconds the workspaces that are suspended for longer than the grace are marked as held, and their machines
 * are frozen: processes, memory and files stay as they are. When an operator ends the suspension, deadlines move by the
 * time the workspace was held, in the transaction that removes the mark, and the machines go on. The mark comes before
 * the freeze, and goes before the thaw: a server that ends between the two is followed by one that finds the mark and
 * freezes, or finds none and thaws as it adopts its machines.
 */
import type { Transaction } from "kysely";
import type { Logger } from "pino";
import type { Database, Db } from "#db/db.ts";
import type { Clock } from "#lib/clock.ts";
import type { Host } from "../host.ts";
import { orderFor } from "../placement.ts";
import type { MachineOwners } from "../owners.ts";
import { findMachine, type MachineRow, machinesOfHost } from "../store.ts";
import { findSuspended, markHeld, release } from "./store.ts";

/** Moves the deadlines of a workspace by the time that it was held. */
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
  /** Workspaces whose machines are to be frozen. */
  #held: ReadonlySet<string> = new Set();
  /** Machines that are frozen, or were to be thawed and could not be yet. */
  readonly #frozen = new Map<string, { workspaceId: string }>();
  readonly #moves: MoveDeadlines[] = [];
  readonly #listeners: ((machine: string) => void)[] = [];
  #looking: Promise<void> | undefined;

  constructor(deps: Deps) {
    this.#deps = deps;
  }

  /** Called before a workspace's machines go on. */
  onRelease(move: MoveDeadlines): void {
    this.#moves.push(move);
  }

  /** Called when a machine is frozen. */
  onHold(listener: (machine: string) => void): void {
    this.#listeners.push(listener);
  }

  /** Whether nothing of the workspace may run. From memory: a few seconds late at most. */
  isHeld(workspaceId: string): boolean {
    return this.#held.has(workspaceId);
  }

  get heldWorkspaces(): readonly string[] {
    return [...this.#held];
  }

  /** Whether the machine is frozen because its workspace is suspended. */
  holds(machine: string): boolean {
    return this.#frozen.has(machine);
  }

  /** Reads who is suspended, and freezes nothing: before the machines of an earlier server are adopted. */
  async read(): Promise<void> {
    const { db, clock, graceSeconds } = this.#deps;
    const now = clock.now();
    const due = new Date(now.getTime() - graceSeconds * 1000);
    const rows = await findSuspended(db);
    const held = rows.filter(({ suspended_at: at }) => at !== null && at <= due);
    for (const { id, held_since } of held) if (held_since === null) await markHeld(db, id, now);
    this.#held = new Set(held.map(({ id }) => id));
  }

  /** One look at all workspaces and machines. Two calls share one look. */
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
    for (const row of await machinesOfHost(db, host.id)) {
      if (this.#frozen.has(row.id) || host.isStarting(row.id)) continue;
      await this.#try(row, "a machine of a suspended workspace could not be frozen yet", async () => {
        const workspaceId = await this.#heldWorkspaceOf(owners, row);
        if (workspaceId === undefined) return;
        await host.freeze({ ...orderFor(row), hostEpoch: host.epoch });
        this.#frozen.set(row.id, { workspaceId });
        for (const listener of this.#listeners) listener(row.id);
      });
    }
  }

  /** Whether the machine belongs to a workspace of which nothing may run. */
  async isToBeHeld(owners: MachineOwners, row: MachineRow): Promise<boolean> {
    return (await this.#heldWorkspaceOf(owners, row)) !== undefined;
  }

  /** Owners are asked while a workspace is held, and not about machines that go: they may know those no more. */
  async #heldWorkspaceOf(owners: MachineOwners, row: MachineRow): Promise<string | undefined> {
    if (this.#held.size === 0 || !mayFreeze(row)) return undefined;
    const workspaceId = await workspaceOf(owners, row);
    return workspaceId !== undefined && this.isHeld(workspaceId) ? workspaceId : undefined;
  }

  async #releaseAll(): Promise<void> {
    const { db, clock, log } = this.#deps;
    for (const { id, suspended_at, held_since } of await findSuspended(db)) {
      // Suspended anew within the grace counts as an end: what was held goes on until the grace is over.
      if (held_since === null || (suspended_at !== null && this.isHeld(id))) continue;
      const ms = Math.max(0, clock.now().getTime() - held_since.getTime());
      await db.transaction().execute(async (tx) => {
        if (!(await release(tx, id))) return;
        for (const move of this.#moves) await move(tx, { workspaceId: id, ms });
      });
      log.info({ workspace: id, heldMs: ms }, "a workspace goes on after its suspension");
    }
  }

  async #thawAll(): Promise<void> {
    const { db, host } = this.#deps;
    for (const [id, { workspaceId }] of this.#frozen) {
      const row = await findMachine(db, id);
      if (row === undefined || row.desired === "removed") this.#frozen.delete(id);
      if (row === undefined || row.desired === "removed" || this.isHeld(workspaceId)) continue;
      await this.#try(row, "a machine could not be thawed after a suspension yet", async () => {
        // One that its owner holds, such as an app that sleeps, stays frozen.
        if (row.desired === "running") await host.thaw({ ...orderFor(row), hostEpoch: host.epoch });
        this.#frozen.delete(id);
      });
    }
  }

  /** One machine that fails keeps no other: the next look tries it again. */
  async #try(row: MachineRow, whatFailed: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.#deps.log.warn({ machine: row.id, owner: row.owner_id, err: error }, whatFailed);
    }
  }
}

/** A build ends by its own deadline; a machine in the pool is nobody's. */
const mayFreeze = ({ owner_kind, desired, snapshot_id }: MachineRow): boolean =>
  owner_kind !== "pool" && owner_kind !== "build" && desired !== "removed" && snapshot_id === null;

async function workspaceOf(owners: MachineOwners, row: MachineRow): Promise<string | undefined> {
  if (row.owner_kind === "pool" || row.owner_id === null) return undefined;
  return (await owners[row.owner_kind]?.describe?.(row.owner_id))?.workspaceId;
}
