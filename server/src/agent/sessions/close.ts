/** Closes a session in the transaction of its end: deletes its messages and queues the termination of its machine. */
import type { Db } from "#schema.ts";
import { queueTermination, machinesEnding } from "../vm/terminate-machines.ts";
import { closeSession } from "./store.ts";

/**
 * Closes a session. Returns false, and changes nothing, if a run is active. The caller holds the lock on the session's
 * row.
 */
export async function close(tx: Db, id: string, at: Date): Promise<boolean> {
  const machines = await closeSession(tx, { id, at }, machinesEnding());
  if (machines) await queueTermination(tx, machines);
  return machines !== undefined;
}
