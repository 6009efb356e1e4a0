/**
 * Waits of runs for a sign-in. If the version's `connections.wait_minutes` allows it, a call that needs a sign-in parks
 * its run. After the sign-in, the run makes the call again. A wait ends when the person has a new connection, at its
 * deadline, or with its run. The waits are rows, and `resolve.ts` compares the rows with the stored connections. So a
 * killed server loses no sign-in.
 */
import type { Db } from "#schema.ts";
import type { MoveDeadlines } from "#machines/suspension/suspension.ts";
import type { SignInNeeded } from "#agent/tools/tool.ts";
import {
  endWaits,
  moveDeadlines,
  findOpenWaits,
  type OverWait,
  putWaits,
  type WaitOutcome,
  type WaitRow,
  waitsOf,
} from "./store.ts";

export type SignInWait = WaitRow;

export interface NewWait {
  callId: string;
  runId: string;
  workspaceId: string;
  needed: SignInNeeded;
  at: Date;
  expiresAt: Date;
}

/** Inserts the waits of one run, in the transaction in which the run is parked. */
export async function insertWaits(tx: Db, waits: readonly NewWait[]): Promise<void> {
  if (waits.length === 0) return;
  const rows = waits.map(({ callId, runId, workspaceId, needed, at, expiresAt }) => ({
    call_id: callId,
    run_id: runId,
    workspace_id: workspaceId,
    toolset_id: needed.toolsetId,
    end_user_id: needed.who,
    connection_id: needed.connection,
    status: "waiting" as const,
    created_at: at,
    expires_at: expiresAt,
  }));
  await putWaits(tx, rows);
}

export async function waitsByCall(db: Db, runId: string): Promise<Map<string, SignInWait>> {
  return new Map((await waitsOf(db, runId)).map((wait) => [wait.call_id, wait]));
}

/** Returns the open waits of each run, the earliest deadline first. */
export async function openWaits(db: Db, runIds: readonly string[]): Promise<Map<string, SignInWait[]>> {
  if (runIds.length === 0) return new Map();
  return Map.groupBy(await findOpenWaits(db, runIds), ({ run_id }) => run_id);
}

export async function hasOpenWait(tx: Db, runId: string): Promise<boolean> {
  return (await findOpenWaits(tx, [runId])).length > 0;
}

/** Cancels the open waits of a run that another request ends. The caller holds the lock on the run's row. */
export async function cancelWaits(tx: Db, runId: string, at: Date) {
  const open = await findOpenWaits(tx, [runId]);
  return closeWaits(
    tx,
    open.map((wait) => ({ ...wait, outcome: "cancelled" as const })),
    at,
  );
}

/** Ends waits and returns one event for each person and toolset. The caller holds the lock on their run's row. */
export async function closeWaits(tx: Db, waits: readonly OverWait[], at: Date) {
  const outcomes: readonly WaitOutcome[] = ["connected", "expired", "cancelled"];
  const events = new Map<string, { type: string; at: Date; data: Record<string, unknown> }>();
  for (const outcome of outcomes) {
    const ended = waits.filter((wait) => wait.outcome === outcome);
    if (ended.length === 0) continue;
    await endWaits(
      tx,
      ended.map(({ call_id }) => call_id),
      outcome,
    );
    for (const { toolset_id, end_user_id } of ended)
      events.set(JSON.stringify([toolset_id, end_user_id, outcome]), {
        type: "connection.auth_resolved",
        at,
        data: { toolset_id, end_user_id, outcome },
      });
  }
  return [...events.values()];
}

/** Moves the deadlines of waits, because the time of a suspension does not count. */
export const moveSignInDeadlines: MoveDeadlines = (tx, { workspaceId, ms }) =>
  moveDeadlines(tx, workspaceId, ms);
