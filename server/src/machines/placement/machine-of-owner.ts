/**
 * Operations of owners on long-running machines: freeze, thaw, and raise the memory limit for a while. The row records
 * the desired state first, so that the next server continues after a crash.
 */
import type { Transaction } from "kysely";
import type { App } from "#app.ts";
import type { Database, Db } from "#schema.ts";
import { refusal } from "./admission.ts";
import { withTranslatedErrors } from "../errors.ts";
import { orderFor } from "./order.ts";
import {
  findOwned,
  lockCommitted,
  type MachineRow,
  type OwnerKind,
  setDesired,
  setMemory,
} from "../store.ts";

export interface Owner {
  ownerKind: OwnerKind;
  ownerId: string;
}

/** Finds the owner's current machine. */
export function findMachineOf(db: Db, { ownerKind, ownerId }: Owner): Promise<MachineRow | undefined> {
  return findOwned(db, ownerKind, ownerId);
}

/**
 * Sets whether the owner's machine must be frozen, in the transaction of the owner's own record. After the commit, pass
 * the result to `freeze` or `thaw`.
 */
export function setFrozen(
  tx: Transaction<Database>,
  { ownerKind, ownerId }: Owner,
  isHeld: boolean,
): Promise<MachineRow | undefined> {
  return setDesired(tx, ownerKind, ownerId, isHeld ? "frozen" : "running");
}

export function freeze({ machines }: Pick<App, "machines">, row: MachineRow): Promise<void> {
  return withTranslatedErrors(() =>
    machines.host.freeze({ ...orderFor(row), hostEpoch: machines.host.epoch }),
  );
}

export function thaw({ machines }: Pick<App, "machines">, row: MachineRow): Promise<void> {
  return withTranslatedErrors(() => machines.host.thaw({ ...orderFor(row), hostEpoch: machines.host.epoch }));
}

/** Changes the memory limit of a running machine. False if the host lacks memory, or the machine is gone. */
export async function changeMemory(
  { db, machines }: Pick<App, "db" | "machines">,
  owner: Owner,
  memoryBytes: number,
): Promise<boolean> {
  const { host, capacity } = machines;
  const row = await db.transaction().execute(async (tx) => {
    const committed = await lockCommitted(tx, host.id);
    const found = await findOwned(tx, owner.ownerKind, owner.ownerId);
    if (!found) return undefined;
    // The committed sum contains this machine and its current memory.
    const others = { ...committed, machines: committed.machines - 1 };
    const more = { memoryBytes: memoryBytes - found.memory_bytes, vcpus: 0 };
    if (more.memoryBytes > 0 && refusal(capacity, others, more) !== undefined) return undefined;
    return setMemory(tx, found.id, memoryBytes);
  });
  if (!row) return false;
  const { vcpus, max_processes: maxProcesses } = row;
  await withTranslatedErrors(() =>
    host.setResources({ ...orderFor(row), hostEpoch: host.epoch }, { vcpus, memoryBytes, maxProcesses }),
  );
  return true;
}
