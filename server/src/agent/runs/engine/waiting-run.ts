/** Changes the state of a run that waits for people. */
import type { Db } from "#schema.ts";
import { hasPending } from "#agent/approvals/approvals.ts";
import { hasOpenWait } from "#agent/oauth/waits/waits.ts";
import { type NewEvent, changeFromOutside, type RunChange } from "../journal/journal.ts";
import { lockRun } from "../store.ts";

/**
 * Adds events to a waiting run. If the run no longer waits for a person, it is queued, or it continues in the process
 * that keeps its call open. If that process is dead, the run is an orphan. The caller holds the lock on the run's row.
 */
export async function continueRun(tx: Db, id: string, events: readonly NewEvent[]): Promise<void> {
  const isWaiting = (await hasPending(tx, id)) || (await hasOpenWait(tx, id));
  await changeFromOutside(tx, id, events, isWaiting ? {} : await nextState(tx, id));
}

async function nextState(tx: Db, id: string): Promise<RunChange> {
  const run = await lockRun(tx, id);
  return run?.process_id ? { status: "running" } : { status: "queued", isResumed: true };
}
