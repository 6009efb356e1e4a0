/**
 * Pauses machines to disk and resumes them. The order of steps keeps a crash from losing data. Pause: the bytes are on
 * disk and hashed; one transaction of the owner records "paused", inserts the snapshot's row and releases the machine;
 * then the memory is freed. Resume: one transaction reserves a place; the machine is restored; one transaction records
 * "running" and consumes the snapshot. After a crash between two steps, `reconcile` and `sweepSnapshots` undo the
 * unfinished part. These functions delete bytes without a row, thaw a frozen machine, and remove a restored machine
 * without an owner.
 */
import type { Transaction } from "kysely";
import type { App } from "#app.ts";
import type { Database } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { isVolumeMissing, restoreFailed, translate } from "../errors.ts";
import type { SnapshotFacts } from "../host/host.ts";
import type { MachineOwners } from "../machine-owner.ts";
import { makeRoom } from "../placement/placement.ts";
import { newMachineId, orderFor } from "../placement/order.ts";
import { openEnv } from "../placement/sealed-env.ts";
import {
  deleteOrphanSnapshots,
  deleteSnapshot,
  findOwned,
  findSnapshot,
  findSnapshotHost,
  insertMachine,
  insertSnapshot,
  type MachineRow,
  markDamaged,
  markOwnedRemoved,
  markRemoved,
  type SnapshotRow,
  snapshotsOfHost,
  assignRestored,
} from "../store.ts";
import { waitForVolumeRelease } from "../volumes.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log" | "clock">;
/** Owners that may be paused, so that only a snapshot of their machine exists. */
type Owner = { ownerKind: "sandbox" | "function"; ownerId: string };

/** A frozen machine with its bytes on disk: pass it to `commitSnapshot` or `resumeOriginal`. */
export interface CapturedMachine {
  id: string;
  machine: MachineRow;
  facts: SnapshotFacts;
  cpuSeconds: number;
}

/**
 * Captures the owner's machine and freezes it. On failure the machine keeps running; `not_checkpointable` names the
 * obstacle.
 */
export async function captureMachine(
  app: Pick<App, "db" | "machines">,
  owner: Owner,
): Promise<CapturedMachine> {
  const machine = await findOwned(app.db, owner.ownerKind, owner.ownerId);
  if (!machine) throw new Error("a running owner has a machine");
  const id = newId("snap_");
  try {
    const facts = await app.machines.host.pause(orderFor(machine), id);
    return { id, machine, facts, cpuSeconds: await app.machines.cpuSeconds(machine.id) };
  } catch (error) {
    throw translate(error);
  }
}

/**
 * Gives the snapshot to the owner and releases its machine, in this transaction; call `releaseMachine` after the
 * commit. Undefined if the machine ended before.
 */
export async function commitSnapshot(
  tx: Transaction<Database>,
  { id, machine, facts }: CapturedMachine,
  options: { reason: SnapshotRow["reason"]; storedAt: Date; expiresAt: Date | null },
): Promise<SnapshotRow | undefined> {
  if (!machine.owner_id || (machine.owner_kind !== "sandbox" && machine.owner_kind !== "function"))
    throw new Error("only a sandbox's or a function's machine is paused");
  const released = await markOwnedRemoved(tx, machine.owner_kind, machine.owner_id);
  if (released?.id !== machine.id) return undefined;
  return insertSnapshot(tx, {
    ...bytesOf(machine, facts),
    id,
    owner_kind: machine.owner_kind,
    owner_id: machine.owner_id,
    env_sealed: machine.env_sealed,
    volume: machine.volume,
    reason: options.reason,
    stored_at: options.storedAt,
    expires_at: options.expiresAt,
  });
}

/** Columns of a snapshot's row about its machine and its bytes. */
export function bytesOf(machine: MachineRow, facts: SnapshotFacts) {
  const { host_id, image_id, vcpus, memory_bytes, disk_bytes, max_processes } = machine;
  const { network, hostname, private_group } = machine;
  return {
    machine: machine.id,
    generation: machine.generation,
    host_id,
    blob_key: null,
    sha256: facts.sha256,
    bytes: facts.bytes,
    cpu_class: facts.cpuClass,
    runtime_build: facts.runtimeBuild,
    image_id,
    vcpus,
    memory_bytes,
    disk_bytes,
    max_processes,
    network,
    hostname,
    private_group,
  };
}

/** Frees the machine; call it after the commit of `commitSnapshot`. */
export function releaseMachine(app: Pick<App, "machines">, { machine }: CapturedMachine): void {
  app.machines.destroyLater(machine);
}

/** Cancels a pause: thaws the machine if its owner still wants it, and deletes the bytes. */
export async function resumeOriginal(
  app: Pick<App, "machines">,
  { id, machine }: CapturedMachine,
): Promise<void> {
  const { host } = app.machines;
  await host.thaw({ ...orderFor(machine), hostEpoch: host.epoch }).catch((error: unknown) => {
    if (!app.machines.isBeingRemoved(machine.id)) throw error;
  });
  await host.dropSnapshot(id);
}

/** Requirements of a machine on its host, from its own row or from its snapshot's row. */
export type Model = Pick<
  MachineRow,
  "image_id" | "vcpus" | "memory_bytes" | "disk_bytes" | "max_processes" | "network" | "private_group"
>;

export interface Place {
  row: MachineRow;
  evicted: MachineRow[];
}

/** Reserves a place for a restored machine; fails with `no_capacity`, or if no host can restore it. */
export async function placeRestored(
  app: Pick<App, "machines">,
  tx: Transaction<Database>,
  snapshot: SnapshotRow,
): Promise<Place> {
  if ((await findSnapshotHost(tx, snapshot)) !== app.machines.host.id) {
    throw restoreFailed(new Error(`no host has ${snapshot.runtime_build} on ${snapshot.cpu_class}`));
  }
  const { id, owner_kind, owner_id, hostname, env_sealed, volume } = snapshot;
  return placeFrom(app, tx, snapshot, {
    owner_kind: owner_kind === "named" ? "sandbox" : owner_kind,
    owner_id,
    hostname,
    env_sealed,
    volume,
    snapshot_id: id,
  });
}

/** Reserves a place for a machine like the model; it has no owner until `assignRestored`. */
export async function placeFrom(
  app: Pick<App, "machines">,
  tx: Transaction<Database>,
  { image_id, vcpus, memory_bytes, disk_bytes, max_processes, network, private_group }: Model,
  whose: Pick<MachineRow, "owner_kind" | "owner_id" | "hostname" | "env_sealed" | "volume"> & {
    snapshot_id: string;
  },
): Promise<Place> {
  const { host } = app.machines;
  const resources = {
    vcpus,
    memoryBytes: memory_bytes,
    diskBytes: disk_bytes,
    maxProcesses: max_processes,
  };
  const evicted = await makeRoom(app, tx, { poolKey: "", template: "", resources }, { mayEvict: true });
  const row = await insertMachine(tx, {
    id: newMachineId(),
    host_id: host.id,
    host_epoch: host.epoch,
    pool_key: null,
    image_id,
    vcpus,
    memory_bytes,
    disk_bytes,
    max_processes,
    network,
    private_group,
    desired: "running",
    ...whose,
  });
  return { row, evicted };
}

/**
 * Restores the machine. The machine runs on return, without an owner until `consumeSnapshot` commits. A failure removes
 * the machine.
 */
export async function restoreMachine(
  app: Needs,
  { row, evicted }: Place,
  options?: { isClone: boolean },
): Promise<void> {
  for (const other of evicted) app.machines.destroyLater(other);
  const { vcpus, memory_bytes: memoryBytes, disk_bytes: diskBytes, max_processes: maxProcesses } = row;
  try {
    if (row.volume) await waitForVolumeRelease(app, row.volume.id);
    const spec = {
      image: row.image_id,
      resources: { vcpus, memoryBytes, diskBytes, maxProcesses },
      network: row.network,
      hostname: row.hostname,
      env: openEnv(app, row),
      ...(row.volume ? { volume: { ...row.volume, isNew: false } } : {}),
      // The restored machine offers no services, because another machine may offer the services of its group by now.
      ...(row.private_group === null ? {} : { privateNetwork: { group: row.private_group } }),
    };
    await app.machines.host.resume(orderFor(row), row.snapshot_id ?? "", spec, options);
  } catch (error) {
    await markRemoved(app.db, row.id);
    app.machines.destroyLater(row);
    throw isVolumeMissing(error) ? translate(error) : restoreFailed(error);
  }
}

/**
 * Gives the restored machine to the owner and deletes the snapshot's row, in this transaction. False if the snapshot
 * was deleted before.
 */
export async function consumeSnapshot(tx: Transaction<Database>, row: MachineRow): Promise<boolean> {
  if (!(await assignRestored(tx, row.id))) return false;
  await deleteSnapshot(tx, { id: row.snapshot_id ?? "" });
  return true;
}

/**
 * Deletes the snapshot's row of an owner that ends while paused. Pass the result to `deleteSnapshotFiles` after the
 * commit.
 */
export function detachSnapshot(tx: Transaction<Database>, owner: Owner): Promise<SnapshotRow | undefined> {
  return deleteSnapshot(tx, owner);
}

/**
 * Deletes snapshot rows of owners of this kind that are not in the list of existing owners; the next sweep deletes the
 * bytes.
 */
export function detachOrphanSnapshots(
  app: Pick<App, "db">,
  ownerKind: Owner["ownerKind"],
  owners: readonly string[],
): Promise<void> {
  return deleteOrphanSnapshots(app.db, ownerKind, owners);
}

/** Deletes the bytes of a snapshot without a row. The next start retries a failure. */
export function deleteSnapshotFiles(app: Pick<App, "machines" | "log">, id: string): void {
  app.machines.host.dropSnapshot(id).catch((error: unknown) => {
    app.log.warn({ snapshot: id, err: error }, "a snapshot could not be deleted yet");
  });
}

/** Runs at start, before any operation: deletes bytes without a row, and logs rows without bytes. */
export async function sweepSnapshots(app: Needs, owners: MachineOwners): Promise<void> {
  const { host } = app.machines;
  const there = new Set(await host.listSnapshots());
  const rows = await snapshotsOfHost(app.db, host.id);
  for (const { id, owner_kind, owner_id } of rows) {
    if (there.delete(id)) continue;
    app.log.error({ snapshot: id, owner: owner_id }, "the bytes of a snapshot are missing");
    if (owner_kind === "named") await markDamaged(app.db, id);
    else await owners[owner_kind]?.ended(owner_id, { exit: null, neverStarted: false, cpuSeconds: 0 });
  }
  for (const id of there) {
    app.log.info({ snapshot: id }, "deleting a snapshot without a row");
    await host.dropSnapshot(id);
  }
}

export { findSnapshot };
export type { SnapshotRow };
