/**
 * Machines that begin where another one stands. The model is a machine that runs, which is written down and goes on, or
 * bytes that are kept already, which get a second name: either way a clone has bytes of its own to begin from, and what
 * becomes of the model meanwhile is no matter to it. Those bytes have no row: a server that ended leaves them to the
 * sweep of the next start. All clones of one call are somebody's in one transaction, or none of them is anybody's.
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
  bringBack,
  bytesOf,
  drop,
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
  takeOver,
} from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "log" | "clock">;
type Secret = Pick<App, "secrets">;

export interface CloneRequest {
  ownerId: string;
  network: MachineRow["network"];
  hostname: string;
  env: Record<string, string>;
}

/** The machine of an owner that runs; undefined where it does not. */
export function findModel(app: Pick<App, "db">, ownerId: string): Promise<MachineRow | undefined> {
  return findOwned(app.db, "sandbox", ownerId);
}

/** The base environment of a machine, or of the one that a snapshot is of. */
export function envOf(app: Secret, model: MachineRow | SnapshotRow): Record<string, string> {
  return openEnv(app, model);
}

/** The name of bytes that are about to be there. */
export function newBytes(): string {
  return newId("snap_");
}

/** What is known of bytes on disk. */
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

/** Writes a machine down, which goes on. Fails with the runtime's own errors. `isDurable`: the bytes are to be kept. */
export async function capture(
  app: Pick<App, "machines">,
  machine: MachineRow,
  bytes: string,
  options: { isDurable: boolean },
): Promise<Bytes> {
  return bytesOf(machine, await app.machines.host.capture(orderFor(machine), bytes, options));
}

/** A snapshot's bytes under a second name. False where they are gone. */
export function shareBytes(
  app: Pick<App, "machines">,
  snapshot: Pick<SnapshotRow, "id">,
  bytes: string,
): Promise<boolean> {
  return app.machines.host.share(snapshot.id, bytes);
}

/** Fails with what is in the way of starting anything from the snapshot, on this host and for good. */
export async function refuseUnlessRestorable(
  app: Pick<App, "db" | "machines">,
  snapshot: SnapshotRow,
): Promise<void> {
  if (snapshot.damaged) throw snapshotDamaged();
  if ((await findSnapshotHost(app.db, snapshot)) === app.machines.host.id) return;
  throw snapshotIncompatible({ runtimeBuild: snapshot.runtime_build, cpuClass: snapshot.cpu_class });
}

/** A place for one clone, in the transaction that reserves it; fails with `no_capacity`. */
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

/** All of them run when this returns; on a failure nothing of them is left, whichever it was of. */
export async function bringUpClones(app: Needs, places: readonly Place[]): Promise<void> {
  const results = await Promise.allSettled(places.map((place) => bringBack(app, place, { isClone: true })));
  const failed = results.find((result) => result.status === "rejected");
  if (!failed) return;
  throw isForGood(failed.reason as Error) ? snapshotDamaged() : failed.reason;
}

/** The clones are their owners' from this transaction on. */
export async function takeOverClones(tx: Transaction<Database>, places: readonly Place[]): Promise<void> {
  for (const { row } of places) {
    if (!(await takeOver(tx, row.id))) throw restoreFailed(new Error("a clone ended while others were made"));
  }
}

/** They are nobody's, in the transaction that takes their reservation back; `destroyLater` them after it. */
export async function releaseClones(tx: Transaction<Database>, places: readonly Place[]): Promise<void> {
  for (const { row } of places) await release(tx, { ownerKind: "sandbox", ownerId: row.owner_id ?? "" });
}

// ---- bytes that are kept for nobody in particular

/** Keeps bytes that are on disk as a named snapshot, from this transaction on. */
export function keepNamed(
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

/** Nothing is started from it any more; it stays until it is deleted. */
export function setDamaged(app: Pick<App, "db">, id: string): Promise<void> {
  return markDamaged(app.db, id);
}

/** Its bytes are nobody's from this transaction on; `drop` them after it. */
export async function forgetNamed(tx: Transaction<Database>, id: string): Promise<void> {
  await deleteSnapshot(tx, { ownerKind: "named", ownerId: id });
}

export { drop, findSnapshot };
export type { MachineRow, Model, Place, SnapshotRow };
