/** A run that waits for people: the lock on its row while one of them acts, and its next state. */
import type { Db } from "#schema.ts";
import { hasPending } from "#agent/approvals/approvals.ts";
import { hasOpenWait } from "#agent/oauth/waits/waits.ts";
import { type NewEvent, overrule, type RunChange } from "../journal/journal.ts";
import { findRunLocked, type RunRow } from "../store.ts";

/** Nobody else's to change until this transaction ends; of whoever reaches these workspaces, or of anybody. */
export function lockRun(
  tx: Db,
  id: string,
  workspaceIds?: readonly string[],
): Promise<Pick<RunRow, "id" | "status"> | undefined> {
  return findRunLocked(tx, id, workspaceIds);
}

/**
 * Adds events to a waiting run. Once it needs no person it is queued, or goes on in the process that holds its call
 * open. If that process is gone, the run is an orphan from then on. The caller holds the lock on its row.
 */
export async function goOn(tx: Db, id: string, events: readonly NewEvent[]): Promise<void> {
  const isWaiting = (await hasPending(tx, id)) || (await hasOpenWait(tx, id));
  await overrule(tx, id, events, isWaiting ? {} : await nextState(tx, id));
}

async function nextState(tx: Db, id: string): Promise<RunChange> {
  const run = await findRunLocked(tx, id);
  return run?.process_id ? { status: "running" } : { status: "queued", isResumed: true };
}
