/** Ids of machines, and orders to the host. */
import { newId } from "#lib/ids.ts";
import type { Order } from "../host/host.ts";
import type { MachineRow } from "../store.ts";

export function newMachineId(): string {
  return newId("m", 19);
}

/** Returns the order that carries out the desired state of a row. */
export function orderFor(row: MachineRow): Order {
  return { machine: row.id, hostEpoch: row.host_epoch, generation: row.generation };
}
