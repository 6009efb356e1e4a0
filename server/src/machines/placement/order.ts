/** Ids of machines, and the orders that the host takes for them. */
import { newId } from "#lib/ids.ts";
import type { Order } from "../host/host.ts";
import type { MachineRow } from "../store.ts";

export function newMachineId(): string {
  return newId("m", 19);
}

/** The order that a row stands for. */
export function orderFor(row: MachineRow): Order {
  return { machine: row.id, hostEpoch: row.host_epoch, generation: row.generation };
}
