/**
 * Machines that start as copies of another machine. The model is a running machine, which is captured and continues, or
 * a stored snapshot, whose bytes get a second name. Either way a clone starts from bytes of its own, independent of the
 * model. These bytes have no row: if the server dies, the sweep of the next start deletes them. A single transaction
 * gives all clones of a call to their owners, or none.
 */
import type { Transaction } from "kysely";
import type { App } from "#app.ts";
import type { Database } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { isForGood, restoreFailed, snapshotDamaged, snapshotIncompatible } from "../errors.ts";
import { release } from "../placement/placement.ts";
import { orderFor } from "../placement/order.ts";
import { openEnv, sealEnv } from "../placement/sealed-env.ts";
import {
  restoreMachine,
  bytesOf,
  deleteSnapshotFiles,
  type Model,
  type Place,
  placeFrom,
  type SnapshotRow,
} from "./snapshots.ts";
import {
  deleteSnapshot,
  findOwned,
  findSnapshot,
  findSnapshotHost,
  insertSnapshot,
  type MachineRow,
  markDamaged,
  assignRestored,
} from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log" | "clock">;
type Secret = Pick<App, "secrets">;

export interface CloneRequest {
  ownerId: string;
  network: MachineRow["network"];
  hostname: string;
  env: Record<string, string>;
}

/** Finds the owner's running machine. Undefined if it does not run. */
export function findModel(app: Pick<App, "db">, ownerId: string): Promise<MachineRow | undefined> {
  return findOwned(app.db, "sandbox", ownerId);
}

/** Returns the base environment of a machine, or of a snapshot's machine. */
export function envOf(app: Secret, model: MachineRow | SnapshotRow): Record<string, string> {
  return openEnv(app, model);
}

/** Returns a new name for snapshot bytes. */
export function newBytes(): string {
  return newId("snap_");
}

/** Facts about snapshot bytes on disk. */
export type Bytes = Omit<
  SnapshotRow,
  | "id"
  | "owner_kind"
  | "owner_id"
  | "env_sealed"
  | "volume"
  | "reason"
  | "stored_at"
  | "expires_at"
  | "damaged"
>;

/**
 * Captures a machine, which continues. Fails with the runtime's own errors. `isDurable`: the bytes outlive this
 * process.
 */
export async function capture(
  app: Pick<App, "machines">,
  machine: MachineRow,
  bytes: string,
  options: { isDurable: boolean },
): Promise<Bytes> {
  return bytesOf(machine, await app.machines.host.capture(orderFor(machine), bytes, options));
}

/** Gives a snapshot's bytes a second name. False if the bytes are missing. */
export function shareBytes(
  app: Pick<App, "machines">,
  snapshot: Pick<SnapshotRow, "id">,
  bytes: string,
): Promise<boolean> {
  return app.machines.host.share(snapshot.id, bytes);
}

/** Throws if no machine can ever start from the snapshot on this host. The error names the reason. */
export async function refuseUnlessRestorable(
  app: Pick<App, "db" | "machines">,
  snapshot: SnapshotRow,
): Promise<void> {
  if (snapshot.damaged) throw snapshotDamaged();
  if ((await findSnapshotHost(app.db, snapshot)) === app.machines.host.id) return;
  throw snapshotIncompatible({ runtimeBuild: snapshot.runtime_build, cpuClass: snapshot.cpu_class });
}

/** Reserves a place for one clone in the caller's transaction; fails with `no_capacity`. */
export function placeClone(
  app: Pick<App, "machines" | "secrets">,
  tx: Transaction<Database>,
  model: Model,
  bytes: string,
  { ownerId, network, hostname, env }: CloneRequest,
): Promise<Place> {
  return placeFrom(
    app,
    tx,
    { ...model, network },
    {
      owner_kind: "sandbox",
      owner_id: ownerId,
      hostname,
      env_sealed: sealEnv(app, ownerId, env),
      volume: null,
      snapshot_id: bytes,
    },
  );
}

/** Starts all clones. All of them run on return; a failure of one removes all. */
export async function startClones(app: Needs, places: readonly Place[]): Promise<void> {
  const results = await Promise.allSettled(
    places.map((place) => restoreMachine(app, place, { isClone: true })),
  );
  const failed = results.find((result) => result.status === "rejected");
  if (!failed) return;
  throw isForGood(failed.reason as Error) ? snapshotDamaged() : failed.reason;
}

/** Gives the clones to their owners, from this transaction on. */
export async function assignClones(tx: Transaction<Database>, places: readonly Place[]): Promise<void> {
  for (const { row } of places) {
    if (!(await assignRestored(tx, row.id)))
      throw restoreFailed(new Error("a clone ended while others were made"));
  }
}

/**
 * Releases the clones in the transaction that ends their reservation; call `destroyLater` for the clones after the
 * commit.
 */
export async function releaseClones(tx: Transaction<Database>, places: readonly Place[]): Promise<void> {
  for (const { row } of places) await release(tx, { ownerKind: "sandbox", ownerId: row.owner_id ?? "" });
}

// ---- named snapshots

/** Stores bytes on disk as a named snapshot, from this transaction on. */
export function insertNamedSnapshot(
  app: Secret,
  tx: Transaction<Database>,
  bytes: Bytes,
  named: { id: string; env: Record<string, string>; storedAt: Date },
): Promise<SnapshotRow> {
  return insertSnapshot(tx, {
    ...bytes,
    id: named.id,
    owner_kind: "named",
    owner_id: named.id,
    env_sealed: sealEnv(app, named.id, named.env),
    volume: null,
    reason: "explicit",
    stored_at: named.storedAt,
    expires_at: null,
  });
}

/** Marks a snapshot as damaged: no machine starts from it any more, and it stays until it is deleted. */
export function markSnapshotDamaged(app: Pick<App, "db">, id: string): Promise<void> {
  return markDamaged(app.db, id);
}

/** Deletes the row of a named snapshot; call `deleteSnapshotFiles` for its bytes after the transaction. */
export async function deleteNamedSnapshot(tx: Transaction<Database>, id: string): Promise<void> {
  await deleteSnapshot(tx, { ownerKind: "named", ownerId: id });
}

export { deleteSnapshotFiles as drop, findSnapshot };
export type { MachineRow, Model, Place, SnapshotRow };
