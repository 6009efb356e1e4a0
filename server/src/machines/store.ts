/** All SQL of the machine tables, private to the machine layer. */
import { type Kysely, sql, type Selectable, type Transaction } from "kysely";
import type { Database } from "#schema.ts";
import type { HostFacts, NetworkMode } from "@kontor/runtime/driver.ts";
import type { HostVolume } from "./host/host.ts";
import type { Region } from "../lib/regions.ts";
import type { HostImagesTable, MachinesTable, SnapshotsTable } from "./tables.ts";

type Queryable = Kysely<Database> | Transaction<Database>;
export type MachineRow = Selectable<MachinesTable>;
export type OwnerKind = Exclude<MachineRow["owner_kind"], "pool">;
export type SnapshotRow = Selectable<SnapshotsTable>;
export type HostImageRow = Selectable<HostImagesTable>;

/** Registers the host under a new epoch, moves its machines to that epoch, and returns the epoch. */
export async function registerHost(
  tx: Transaction<Database>,
  host: {
    id: string;
    /** All regions of the host; the first is its default. */
    regions: readonly [Pick<Region, "code" | "name">, ...Pick<Region, "code" | "name">[]];
    address: string;
    leaseSeconds: number;
    facts: HostFacts;
  },
): Promise<number> {
  await tx
    .insertInto("regions")
    .values(host.regions.map(({ code, name }) => ({ code, name })))
    .onConflict((conflict) => conflict.column("code").doUpdateSet({ name: sql<string>`excluded.name` }))
    .execute();
  const values = {
    region: host.regions[0].code,
    address: host.address,
    state: "ready" as const,
    lease_until: sql<Date>`now() + make_interval(secs => ${host.leaseSeconds})`,
    cpu_class: host.facts.cpuClass,
    runtime_builds: [...host.facts.runtimeBuilds],
    vcpus: host.facts.vcpus,
    memory_bytes: host.facts.memoryBytes,
    disk_bytes: host.facts.diskFreeBytes,
  };
  const { epoch } = await tx
    .insertInto("hosts")
    .values({ id: host.id, ...values })
    .onConflict((conflict) =>
      conflict.column("id").doUpdateSet({ ...values, epoch: sql<number>`hosts.epoch + 1` }),
    )
    .returning("epoch")
    .executeTakeFirstOrThrow();
  await tx.updateTable("machines").set({ host_epoch: epoch }).where("host_id", "=", host.id).execute();
  return epoch;
}

/** Extends the host's lease. False if another process has the lease. */
export async function renewLease(
  db: Queryable,
  host: { id: string; epoch: number },
  leaseSeconds: number,
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("hosts")
    .set({ lease_until: sql<Date>`now() + make_interval(secs => ${leaseSeconds})` })
    .where("id", "=", host.id)
    .where("epoch", "=", host.epoch)
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Locks the host's row, and returns the sum of the limits of all machines of the host, by their rows. */
export async function lockCommitted(
  tx: Transaction<Database>,
  hostId: string,
): Promise<{ machines: number; memoryBytes: number; vcpus: number }> {
  await tx.selectFrom("hosts").select("id").where("id", "=", hostId).forUpdate().execute();
  const sums = await tx
    .selectFrom("machines")
    .select((eb) => [
      eb.fn.countAll<number>().as("machines"),
      eb.fn.coalesce(eb.fn.sum<number>("memory_bytes"), sql<number>`0`).as("memory_bytes"),
      eb.fn.coalesce(eb.fn.sum<number>("vcpus"), sql<number>`0`).as("vcpus"),
    ])
    .where("host_id", "=", hostId)
    .where("desired", "<>", "removed")
    .executeTakeFirstOrThrow();
  return {
    machines: Number(sums.machines),
    memoryBytes: Number(sums.memory_bytes),
    vcpus: Number(sums.vcpus),
  };
}

export type NewMachine = Pick<
  MachineRow,
  | "id"
  | "host_id"
  | "host_epoch"
  | "pool_key"
  | "image_id"
  | "owner_kind"
  | "owner_id"
  | "vcpus"
  | "memory_bytes"
  | "disk_bytes"
  | "max_processes"
  | "network"
  | "hostname"
  | "env_sealed"
  | "desired"
> & {
  isolation?: MachineRow["isolation"];
  snapshot_id?: string;
  volume?: HostVolume | null;
  private_group?: string | null;
  serves?: MachineRow["serves"];
};

export function insertMachine(tx: Queryable, machine: NewMachine): Promise<MachineRow> {
  return tx
    .insertInto("machines")
    .values({
      ...machine,
      volume: toJson(machine.volume ?? null),
      serves: toJson(machine.serves ?? null),
      observed: "starting",
      claimed_at: null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
}

function toJson(value: object | null): string | null {
  return value && JSON.stringify(value);
}

/** Machines of the host that use a volume, including those being removed. */
export function machinesWithVolume(db: Queryable, hostId: string, volume: string): Promise<MachineRow[]> {
  return db
    .selectFrom("machines")
    .selectAll()
    .where("host_id", "=", hostId)
    .where(sql`volume ->> 'id'`, "=", volume)
    .execute();
}

/** Gives the oldest warm machine of a pool to an owner. Two callers never get the same machine. */
export async function takeWarm(
  tx: Queryable,
  wanted: {
    hostId: string;
    poolKey: string;
    ownerKind: OwnerKind;
    ownerId: string;
    network: NetworkMode;
    hostname: string;
    envSealed: Buffer;
  },
): Promise<MachineRow | undefined> {
  const warm = tx
    .selectFrom("machines")
    .select("id")
    .where("host_id", "=", wanted.hostId)
    .where("pool_key", "=", wanted.poolKey)
    .where("owner_kind", "=", "pool")
    .where("desired", "=", "frozen")
    .where("observed", "=", "ready")
    .orderBy("created_at")
    .limit(1)
    .forUpdate()
    .skipLocked();
  return tx
    .updateTable("machines")
    .set({
      owner_kind: wanted.ownerKind,
      owner_id: wanted.ownerId,
      network: wanted.network,
      hostname: wanted.hostname,
      env_sealed: wanted.envSealed,
      desired: "running",
      claimed_at: sql<Date>`now()`,
    })
    .where("id", "=", warm)
    .returningAll()
    .executeTakeFirst();
}

/** Marks up to `count` waiting machines for removal, the oldest first, and returns them. */
export async function evictWarm(
  tx: Transaction<Database>,
  hostId: string,
  which: { only: string } | { except: string } | { image: string },
  count: number,
): Promise<MachineRow[]> {
  const victims = tx
    .selectFrom("machines")
    .select("id")
    .where("host_id", "=", hostId)
    .where("owner_kind", "=", "pool")
    .where("desired", "=", "frozen")
    .where("observed", "=", "ready")
    .where((eb) =>
      "image" in which
        ? eb("image_id", "=", which.image)
        : eb("pool_key", "only" in which ? "=" : "<>", "only" in which ? which.only : which.except),
    )
    .orderBy("created_at")
    .limit(count)
    .forUpdate()
    .skipLocked();
  return tx
    .updateTable("machines")
    .set({ desired: "removed" })
    .where("id", "in", victims)
    .returningAll()
    .execute();
}

export async function setObserved(
  db: Queryable,
  id: string,
  observed: MachineRow["observed"],
): Promise<MachineRow | undefined> {
  return db.updateTable("machines").set({ observed }).where("id", "=", id).returningAll().executeTakeFirst();
}

export async function markRemoved(db: Queryable, id: string): Promise<MachineRow | undefined> {
  return db
    .updateTable("machines")
    .set({ desired: "removed" })
    .where("id", "=", id)
    .returningAll()
    .executeTakeFirst();
}

export async function markOwnedRemoved(
  tx: Queryable,
  ownerKind: OwnerKind,
  ownerId: string,
): Promise<MachineRow | undefined> {
  return tx
    .updateTable("machines")
    .set({ desired: "removed" })
    .where("owner_kind", "=", ownerKind)
    .where("owner_id", "=", ownerId)
    .where("desired", "<>", "removed")
    .returningAll()
    .executeTakeFirst();
}

/** Marks every machine of owners of this kind for removal, because their work ended with the server. */
export async function markKindRemoved(db: Queryable, hostId: string, ownerKind: OwnerKind): Promise<void> {
  await db
    .updateTable("machines")
    .set({ desired: "removed" })
    .where("host_id", "=", hostId)
    .where("owner_kind", "=", ownerKind)
    .execute();
}

/** Marks machines of missing owners of this kind for removal. */
export async function markOrphansRemoved(
  db: Queryable,
  hostId: string,
  ownerKind: OwnerKind,
  owners: readonly string[],
): Promise<void> {
  await db
    .updateTable("machines")
    .set({ desired: "removed" })
    .where("host_id", "=", hostId)
    .where("owner_kind", "=", ownerKind)
    .where("owner_id", "<>", sql<string>`all(${sql.val([...owners])}::text[])`)
    .execute();
}

/** Sets whether an owner's machine should run or be frozen. */
export async function setDesired(
  tx: Queryable,
  ownerKind: OwnerKind,
  ownerId: string,
  desired: "running" | "frozen",
): Promise<MachineRow | undefined> {
  return tx
    .updateTable("machines")
    .set({ desired })
    .where("owner_kind", "=", ownerKind)
    .where("owner_id", "=", ownerId)
    .where("desired", "<>", "removed")
    .returningAll()
    .executeTakeFirst();
}

export async function setMemory(
  tx: Queryable,
  id: string,
  memoryBytes: number,
): Promise<MachineRow | undefined> {
  return tx
    .updateTable("machines")
    .set({ memory_bytes: memoryBytes })
    .where("id", "=", id)
    .where("desired", "<>", "removed")
    .returningAll()
    .executeTakeFirst();
}

/**
 * Deletes the row of a machine once nothing of the machine is left; only a machine marked for removal may lose its row.
 */
export async function deleteRemoved(db: Queryable, id: string): Promise<void> {
  await db.deleteFrom("machines").where("id", "=", id).where("desired", "=", "removed").execute();
}

/** Finds the machine of an owner. */
export function findOwned(
  db: Queryable,
  ownerKind: OwnerKind,
  ownerId: string,
): Promise<MachineRow | undefined> {
  return db
    .selectFrom("machines")
    .selectAll()
    .where("owner_kind", "=", ownerKind)
    .where("owner_id", "=", ownerId)
    .where("desired", "<>", "removed")
    .executeTakeFirst();
}

export function findMachine(db: Queryable, id: string): Promise<MachineRow | undefined> {
  return db.selectFrom("machines").selectAll().where("id", "=", id).executeTakeFirst();
}

export function machinesOfHost(db: Queryable, hostId: string): Promise<MachineRow[]> {
  return db.selectFrom("machines").selectAll().where("host_id", "=", hostId).orderBy("created_at").execute();
}

/** Number of warm and warming machines per pool. */
export async function countPools(db: Queryable, hostId: string): Promise<Map<string, number>> {
  const rows = await db
    .selectFrom("machines")
    .select((eb) => ["pool_key", eb.fn.countAll<number>().as("count")])
    .where("host_id", "=", hostId)
    .where("owner_kind", "=", "pool")
    .where("desired", "=", "frozen")
    .groupBy("pool_key")
    .execute();
  return new Map(rows.map((row) => [row.pool_key ?? "", Number(row.count)]));
}

/** Owner and state of every machine of the host, for metrics. */
export function statesOfHost(
  db: Queryable,
  hostId: string,
): Promise<Pick<MachineRow, "id" | "owner_kind" | "desired" | "observed">[]> {
  return db
    .selectFrom("machines")
    .select(["id", "owner_kind", "desired", "observed"])
    .where("host_id", "=", hostId)
    .execute();
}

export async function saveImage(
  db: Queryable,
  image: Pick<
    HostImageRow,
    "host_id" | "name" | "state" | "image_id" | "substituted" | "size_bytes" | "error"
  > & {
    contents: Record<string, string>;
  },
): Promise<void> {
  const values = { ...image, contents: JSON.stringify(image.contents) };
  await db
    .insertInto("host_images")
    .values(values)
    .onConflict((conflict) =>
      conflict.columns(["host_id", "name"]).doUpdateSet({ ...values, updated_at: sql<Date>`now()` }),
    )
    .execute();
}

/** Images that a machine or a snapshot of the host needs. */
export async function imagesInUse(db: Queryable, hostId: string): Promise<Set<string>> {
  const rows = await db
    .selectFrom("machines")
    .select("image_id")
    .where("host_id", "=", hostId)
    .union(db.selectFrom("snapshots").select("image_id").where("host_id", "=", hostId))
    .execute();
  return new Set(rows.map(({ image_id }) => image_id));
}

export function insertSnapshot(tx: Queryable, snapshot: Omit<SnapshotRow, "damaged">): Promise<SnapshotRow> {
  const values = { ...snapshot, volume: toJson(snapshot.volume) };
  return tx.insertInto("snapshots").values(values).returningAll().executeTakeFirstOrThrow();
}

export function findSnapshot(
  db: Queryable,
  owner: { ownerKind: SnapshotRow["owner_kind"]; ownerId: string },
): Promise<SnapshotRow | undefined> {
  return db
    .selectFrom("snapshots")
    .selectAll()
    .where("owner_kind", "=", owner.ownerKind)
    .where("owner_id", "=", owner.ownerId)
    .executeTakeFirst();
}

export function deleteSnapshot(
  tx: Queryable,
  which: { id: string } | { ownerKind: SnapshotRow["owner_kind"]; ownerId: string },
): Promise<SnapshotRow | undefined> {
  const query = tx.deleteFrom("snapshots");
  const one =
    "id" in which
      ? query.where("id", "=", which.id)
      : query.where("owner_kind", "=", which.ownerKind).where("owner_id", "=", which.ownerId);
  return one.returningAll().executeTakeFirst();
}

/** Deletes snapshots of missing owners of this kind. */
export async function deleteOrphanSnapshots(
  db: Queryable,
  ownerKind: SnapshotRow["owner_kind"],
  owners: readonly string[],
): Promise<void> {
  await db
    .deleteFrom("snapshots")
    .where("owner_kind", "=", ownerKind)
    .where("owner_id", "<>", sql<string>`all(${sql.val([...owners])}::text[])`)
    .execute();
}

/** Builds of the runtime that at least one snapshot needs. */
export async function neededRuntimeBuilds(db: Queryable): Promise<string[]> {
  const rows = await db.selectFrom("snapshots").select("runtime_build").distinct().execute();
  return rows.map(({ runtime_build: build }) => build);
}

export function snapshotsOfHost(db: Queryable, hostId: string): Promise<SnapshotRow[]> {
  return db.selectFrom("snapshots").selectAll().where("host_id", "=", hostId).execute();
}

/** Marks a snapshot as damaged: no machine starts from it any more. */
export async function markDamaged(db: Queryable, id: string): Promise<void> {
  await db.updateTable("snapshots").set({ damaged: true }).where("id", "=", id).execute();
}

/** Finds the host that stores the bytes and has the required runtime and processors. */
export async function findSnapshotHost(db: Queryable, snapshot: SnapshotRow): Promise<string | undefined> {
  const host = await db
    .selectFrom("hosts")
    .select("id")
    .where("id", "=", snapshot.host_id)
    .where("state", "=", "ready")
    .where("cpu_class", "=", snapshot.cpu_class)
    .where(sql<boolean>`${snapshot.runtime_build} = any(runtime_builds)`)
    .executeTakeFirst();
  return host?.id;
}

/** Gives the restored machine to its owner. False if the machine is marked for removal. */
export async function assignRestored(tx: Queryable, id: string): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("machines")
    .set({ snapshot_id: null, claimed_at: sql<Date>`now()` })
    .where("id", "=", id)
    .where("desired", "=", "running")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}
