/** The end of a session, in the transaction that ends it: what was said and its machine go. Its row is the caller's. */
import type { Db } from "#db/db.ts";
import { endMachines } from "../vm/end.ts";
import { changeSession, deleteMessages } from "./store.ts";

export async function close(tx: Db, id: string, at: Date): Promise<void> {
  await changeSession(tx, id, { ended_at: at });
  await deleteMessages(tx, id);
  await endMachines(tx, [id]);
}
