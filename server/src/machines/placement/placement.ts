/**
 * Chooses the place of a machine in the owner's own transaction: a warm machine, which is a row to lock, or capacity
 * for a new machine. With one host there is one place; with more hosts, `place` would choose, and its result already
 * names the host. After the commit the reservation is binding: the server that finds it after a crash either completes
 * it or ends it.
 */
import type { Transaction } from "kysely";
import type { Isolation, NetworkMode, PrivateNetwork } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import type { Database } from "#schema.ts";
import { diskRefusal, refusal } from "./admission.ts";
import { DiskShort, noCapacity } from "../errors.ts";
import type { HostImage, HostVolume, StartSpec } from "../host/host.ts";
import { newMachineId } from "./order.ts";
import { sealEnv } from "./sealed-env.ts";
import type { Shape } from "./shape.ts";
import {
  evictWarm,
  insertMachine,
  lockCommitted,
  type MachineRow,
  markKindRemoved,
  markOrphansRemoved,
  markOwnedRemoved,
  type OwnerKind,
  takeWarm,
} from "../store.ts";

type Needs = Pick<App, "machines" | "secrets">;

export interface MachineRequest {
  ownerKind: OwnerKind;
  ownerId: string;
  shape: Shape;
  image: Pick<HostImage, "id">;
  /** Warm machines use gVisor; another isolation needs a cold machine. */
  isolation?: Isolation;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
  /** A volume on this host. */
  volume?: StartSpec["volume"];
  /** A machine with a private network is always cold. */
  privateNetwork?: PrivateNetwork;
}

export interface Reservation {
  row: MachineRow;
  request: MachineRequest;
  warm: boolean;
  /** Evicted warm machines of other pools; remove them after the commit. */
  evicted: MachineRow[];
}

/** Finds a place for a machine; fails with `no_capacity`. */
export type Place = (app: Needs, tx: Transaction<Database>, request: MachineRequest) => Promise<Reservation>;

/**
 * Takes a warm machine if one waits, or else reserves capacity for a cold one. Options that no warm machine has need a
 * cold one.
 */
export const place: Place = async (app, tx, request) => {
  const { volume, isolation, privateNetwork } = request;
  if (volume || privateNetwork || isolation === "native") return placeCold(app, tx, request);
  await refuseFullDisk(app);
  const warm = await takeWarm(tx, {
    hostId: app.machines.host.id,
    poolKey: request.shape.poolKey,
    ownerKind: request.ownerKind,
    ownerId: request.ownerId,
    network: request.network,
    hostname: request.hostname,
    envSealed: sealEnv(app, request.ownerId, request.env),
  });
  return warm ? { row: warm, request, warm: true, evicted: [] } : placeCold(app, tx, request);
};

/** Reserves capacity for a cold machine. */
export const placeCold: Place = async (app, tx, request) => {
  const evicted = await makeRoom(app, tx, request.shape, { mayEvict: true });
  const { host } = app.machines;
  const { resources } = request.shape;
  const row = await insertMachine(tx, {
    id: newMachineId(),
    host_id: host.id,
    host_epoch: host.epoch,
    pool_key: null,
    image_id: request.image.id,
    isolation: request.isolation ?? "gvisor",
    owner_kind: request.ownerKind,
    owner_id: request.ownerId,
    vcpus: resources.vcpus,
    memory_bytes: resources.memoryBytes,
    disk_bytes: resources.diskBytes,
    max_processes: resources.maxProcesses,
    network: request.network,
    hostname: request.hostname,
    env_sealed: sealEnv(app, request.ownerId, request.env),
    volume: request.volume ? toHostVolume(request.volume) : null,
    private_group: request.privateNetwork?.group ?? null,
    serves: request.privateNetwork?.serves ?? null,
    desired: "running",
  });
  return { row, request, warm: false, evicted };
};

/**
 * Checks that a machine of this shape fits. A request may evict warm machines of other shapes; a refill may not.
 */
export async function makeRoom(
  app: Pick<App, "machines">,
  tx: Transaction<Database>,
  shape: Shape,
  options: { mayEvict: boolean },
): Promise<MachineRow[]> {
  const { host, capacity } = app.machines;
  await refuseFullDisk(app);
  const committed = await lockCommitted(tx, host.id);
  const short = refusal(capacity, committed, shape.resources);
  if (short === undefined) return [];
  if (!options.mayEvict) throw noCapacity(short);
  const evicted = await evictWarm(tx, host.id, { except: shape.poolKey }, 8);
  const freed = evicted.reduce(
    (sum, row) => ({
      machines: sum.machines - 1,
      memoryBytes: sum.memoryBytes - row.memory_bytes,
      vcpus: sum.vcpus - row.vcpus,
    }),
    committed,
  );
  const stillShort = refusal(capacity, freed, shape.resources);
  if (stillShort !== undefined) throw noCapacity(stillShort);
  return evicted;
}

async function refuseFullDisk({ machines }: Pick<App, "machines">): Promise<void> {
  const short = diskRefusal(machines.capacity, (await machines.host.facts()).diskFreeBytes);
  if (short !== undefined) throw noCapacity(short, new DiskShort(short));
}

/**
 * Releases the owner's machine in the transaction that ends the owner's record. Pass the result to `destroyLater` after
 * the commit.
 */
export function release(
  tx: Transaction<Database>,
  owner: Pick<MachineRequest, "ownerKind" | "ownerId">,
): Promise<MachineRow | undefined> {
  return markOwnedRemoved(tx, owner.ownerKind, owner.ownerId);
}

function toHostVolume({ id, region, sizeBytes }: HostVolume): HostVolume {
  return { id, region, sizeBytes };
}

/** Releases the machines of all owners of a kind at start; the next `reconcile` removes them. */
export function releaseAll(app: Pick<App, "db" | "machines">, ownerKind: OwnerKind): Promise<void> {
  return markKindRemoved(app.db, app.machines.host.id, ownerKind);
}

/** Releases the machines of owners of this kind that are not in the given list of existing owners. */
export function releaseOrphans(
  app: Pick<App, "db" | "machines">,
  ownerKind: OwnerKind,
  owners: readonly string[],
): Promise<void> {
  return markOrphansRemoved(app.db, app.machines.host.id, ownerKind, owners);
}
