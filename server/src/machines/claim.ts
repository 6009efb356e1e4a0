/**
 * A machine for somebody: reserved in the owner's own transaction, brought up after it committed. A warm one is a
 * row to lock and a thaw; without one a machine is made to order. The reservation is the truth from the commit on:
 * whoever finds it after a crash either finishes it or ends it.
 */
import { randomUUID } from "node:crypto";
import type { Transaction } from "kysely";
import type { NetworkMode } from "@kontor/runtime/driver.ts";
import type { App } from "#app.ts";
import type { Database } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import { refusal } from "./admission.ts";
import { noCapacity, startFailed } from "./errors.ts";
import type { HostImage, Order } from "./host.ts";
import type { Shape } from "./shape.ts";
import { evictWarm, insertMachine, lockCommitted, markRemoved, type MachineRow, takeWarm } from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log">;

export interface MachineRequest {
  ownerKind: "sandbox";
  ownerId: string;
  shape: Shape;
  image: HostImage;
  network: NetworkMode;
  hostname: string;
  env: Record<string, string>;
}

export interface Reservation {
  row: MachineRow;
  request: MachineRequest;
  warm: boolean;
  /** Warm machines of other pools that made room; to be removed after the commit. */
  evicted: MachineRow[];
}

export function newMachineId(): string {
  return newId("m", 19);
}

export function orderFor(row: MachineRow): Order {
  return { machine: row.id, hostEpoch: row.host_epoch, generation: row.generation };
}

/** Takes a warm machine, or reserves room for a cold one. Part of the caller's transaction. */
export async function reserveMachine(
  app: Needs,
  tx: Transaction<Database>,
  request: MachineRequest,
): Promise<Reservation> {
  const warm = await takeWarm(tx, {
    hostId: app.machines.host.id,
    poolKey: request.shape.poolKey,
    ownerKind: request.ownerKind,
    ownerId: request.ownerId,
    network: request.network,
    hostname: request.hostname,
    envSealed: sealEnv(app, request.ownerId, request.env),
  });
  if (warm) return { row: warm, request, warm: true, evicted: [] };
  return reserveCold(app, tx, request);
}

async function reserveCold(
  app: Needs,
  tx: Transaction<Database>,
  request: MachineRequest,
): Promise<Reservation> {
  const evicted = await makeRoom(app, tx, request.shape, { mayEvict: true });
  const { resources } = request.shape;
  const row = await insertMachine(tx, {
    id: newMachineId(),
    host_id: app.machines.host.id,
    host_epoch: app.machines.host.epoch,
    pool_key: null,
    image_id: request.image.id,
    owner_kind: request.ownerKind,
    owner_id: request.ownerId,
    vcpus: resources.vcpus,
    memory_bytes: resources.memoryBytes,
    disk_bytes: resources.diskBytes,
    max_processes: resources.maxProcesses,
    network: request.network,
    hostname: request.hostname,
    env_sealed: sealEnv(app, request.ownerId, request.env),
    desired: "running",
  });
  return { row, request, warm: false, evicted };
}

/** Checks that a machine of this shape fits. A need may push waiting machines of other shapes out; a refill may not. */
export async function makeRoom(
  app: Pick<App, "machines">,
  tx: Transaction<Database>,
  shape: Shape,
  options: { mayEvict: boolean },
): Promise<MachineRow[]> {
  const { host, capacity } = app.machines;
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

/**
 * Carries a committed reservation out; the machine runs when this returns. A warm machine that fails is replaced by
 * a cold one, once. What fails for good is removed, and the caller is told so that it can say it in its own record.
 */
export async function bringUp(app: Needs, reservation: Reservation): Promise<void> {
  for (const row of reservation.evicted) app.machines.destroyLater(row);
  app.machines.pool.used(reservation.request.shape);
  try {
    await carryOut(app, reservation);
  } catch (error) {
    app.machines.destroyLater(reservation.row);
    if (!reservation.warm) throw startFailed(error);
    app.log.warn(
      { machine: reservation.row.id, err: error },
      "a warm machine failed at claim; starting a cold one",
    );
    await bringUp(app, await replace(app, reservation));
  }
}

async function carryOut(app: Needs, { row, request, warm }: Reservation): Promise<void> {
  const { network, hostname, env } = request;
  const { diskBytes, ...adjustable } = request.shape.resources;
  if (warm) await app.machines.host.claim(orderFor(row), { resources: adjustable, network, hostname, env });
  else {
    const resources = { ...adjustable, diskBytes };
    await app.machines.host.start(orderFor(row), { image: row.image_id, resources, network, hostname, env });
  }
  app.machines.sampler.watch(row.id);
}

function replace(app: Needs, failed: Reservation): Promise<Reservation> {
  return app.db.transaction().execute(async (tx) => {
    await markRemoved(tx, failed.row.id);
    return reserveCold(app, tx, failed.request);
  });
}

/** Sealed to the owner: a row copied to another owner does not open. */
export function sealEnv(app: Pick<App, "secrets">, ownerId: string, env: Record<string, string>): Buffer {
  return app.secrets.seal(JSON.stringify(env), `machines:env:${ownerId}`);
}

export function openEnv(app: Pick<App, "secrets">, row: MachineRow): Record<string, string> {
  if (!row.env_sealed || row.owner_id === null) return {};
  return JSON.parse(app.secrets.open(row.env_sealed, `machines:env:${row.owner_id}`).toString()) as Record<
    string,
    string
  >;
}

/** The owner lets go, in its own transaction; call `destroyLater` with the row after the commit. */
export async function releaseMachine(
  tx: Transaction<Database>,
  ownerKind: "sandbox",
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

export const newHostId = (): string => `host_${randomUUID()}`;
