/** A run that waits for people: the lock on its row during a decision, and its next state. */
import type { Db } from "#schema.ts";
import { hasPending } from "#agent/approvals/approvals.ts";
import { hasOpenWait } from "#agent/oauth/waits/waits.ts";
import { type NewEvent, overrule, type RunChange } from "../journal/journal.ts";
import { findRunLocked, type RunRow } from "../store.ts";

/** Locks the run's row until the transaction ends. Without `workspaceIds`, any run. */
export function lockRun(
  tx: Db,
  id: string,
  workspaceIds?: readonly string[],
): Promise<Pick<RunRow, "id" | "status"> | undefined> {
  return findRunLocked(tx, id, workspaceIds);
}

/**
 * Adds events to a waiting run. If it no longer waits for a person, it is queued, or continues in the process that
 * keeps its call open. If that process is dead, the run is an orphan. The caller holds the lock on its row.
 */
export async function goOn(tx: Db, id: string, events: readonly NewEvent[]): Promise<void> {
  const isWaiting = (await hasPending(tx, id)) || (await hasOpenWait(tx, id));
  await overrule(tx, id, events, isWaiting ? {} : await nextState(tx, id));
}

async function nextState(tx: Db, id: string): Promise<RunChange> {
  const run = await findRunLocked(tx, id);
  return run?.process_id ? { status: "running" } : { status: "queued", isResumed: true };
}
