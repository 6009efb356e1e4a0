/** A run that waits for a person: its row held while somebody decides, and the run let go on after it. */
import type { Db } from "#db/db.ts";
import { type NewEvent, overrule } from "./journal.ts";
import { findRunLocked, type RunRow } from "./store.ts";

/** Nobody else's to change until this transaction ends; of whoever reaches these workspaces, or of anybody. */
export function lockRun(
  tx: Db,
  id: string,
  workspaceIds?: readonly string[],
): Promise<Pick<RunRow, "id" | "status"> | undefined> {
  return findRunLocked(tx, id, workspaceIds);
}

/** Whichever process looks first takes it up. Of one that waits, with its row locked. */
export async function goOn(tx: Db, id: string, events: readonly NewEvent[]): Promise<void> {
  await overrule(tx, id, events, { status: "queued", isResumed: true });
}
