/** The end of a session, in the transaction that ends it: what was said and its machine go. */
import type { Db } from "#schema.ts";
import { endSoon, machinesEnding } from "../vm/terminate-machines.ts";
import { closeSession } from "./store.ts";

/** Its row is the caller's. False, and nothing ends, where a run is under way in it. */
export async function close(tx: Db, id: string, at: Date): Promise<boolean> {
  const machines = await closeSession(tx, { id, at }, machinesEnding());
  if (machines) await endSoon(tx, machines);
  return machines !== undefined;
}
