/**
 * Where a machine comes to stand, decided in the owner's own transaction: a warm machine, which is a row to lock, or
 * room for a new one. With one host there is one place; with more, `place` chooses among them, and whatever it
 * answers already names the host. The reservation is the truth from the commit on: whoever finds it after a crash
 * either finishes it or ends it.
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
  /** Warm machines are on gVisor; what asks for another is made to order. */
  isolation?: Isolation;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
  /** Of this host. */
  volume?: StartSpec["volume"];
  /** What asks for one is made to order. */
  privateNetwork?: PrivateNetwork;
}

export interface Reservation {
  row: MachineRow;
  request: MachineRequest;
  warm: boolean;
  /** Warm machines of other pools that made room; to be removed after the commit. */
  evicted: MachineRow[];
}

/** How a machine is found a place; fails with `no_capacity`. */
export type Place = (app: Needs, tx: Transaction<Database>, request: MachineRequest) => Promise<Reservation>;

/** A warm machine where one waits, else room for a cold one. What no warm one has is always made to order. */
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

/** Room for a machine made to order. */
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

/** Checks that a machine of this shape fits. A need may push waiting machines of other shapes out; a refill may not. */
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

/** The owner lets go, in the transaction that ends its own record; `destroyLater` the answer after the commit. */
export function release(
  tx: Transaction<Database>,
  owner: Pick<MachineRequest, "ownerKind" | "ownerId">,
): Promise<MachineRow | undefined> {
  return markOwnedRemoved(tx, owner.ownerKind, owner.ownerId);
}

function toHostVolume({ id, region, sizeBytes }: HostVolume): HostVolume {
  return { id, region, sizeBytes };
}

/** The same for every owner of a kind, at the start: their machines are removed by the reconcile that follows. */
export function releaseAll(app: Pick<App, "db" | "machines">, ownerKind: OwnerKind): Promise<void> {
  return markKindRemoved(app.db, app.machines.host.id, ownerKind);
}

/** The same for those of them that are not in the list of those there are. */
export function releaseOrphans(
  app: Pick<App, "db" | "machines">,
  ownerKind: OwnerKind,
  owners: readonly string[],
): Promise<void> {
  return markOrphansRemoved(app.db, app.machines.host.id, ownerKind, owners);
}
