/**
 * The journal of tool calls. It owns what was asked for, whether it began, and what came of it, and is written before
 * and after: so a result that is there is never asked for again, and a call that began and has none is known as one
 * whose outcome nobody knows.
 */
import type { Db } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import {
  type CalledRow,
  type CallRow,
  callsOfRuns,
  callsOfStep,
  changeCall,
  forgetWords,
  insertCalls,
} from "./store.ts";

export type Call = CallRow;
export type Called = CalledRow;

export interface Outcome {
  status: "completed" | "failed" | "denied" | "expired" | "unknown";
  /** What the model is told. */
  result: string;
}

export const newCallId = (): string => newId("call_");

export function request(
  tx: Db,
  runId: string,
  step: number,
  calls: readonly { id: string; tool: string; toolsetId: string | null; arguments: unknown }[],
): Promise<void> {
  return insertCalls(
    tx,
    calls.map((call, position) => ({
      id: call.id,
      run_id: runId,
      step,
      position,
      tool: call.tool,
      toolset_id: call.toolsetId,
      arguments: JSON.stringify(call.arguments),
      status: "requested",
      result: null,
      started_at: null,
      finished_at: null,
    })),
  );
}

export function requested(db: Db, runId: string, step: number): Promise<Call[]> {
  return callsOfStep(db, runId, step);
}

export function began(tx: Db, id: string, at: Date): Promise<void> {
  return changeCall(tx, id, { status: "running", started_at: at });
}

export function ended(tx: Db, id: string, outcome: Outcome, at: Date): Promise<void> {
  return changeCall(tx, id, { ...outcome, finished_at: at });
}

/** Those of each run that began, or were decided on. */
export async function called(db: Db, runIds: readonly string[]): Promise<Map<string, Called[]>> {
  if (runIds.length === 0) return new Map();
  const rows = await callsOfRuns(db, runIds);
  return Map.groupBy(
    rows.filter(({ status }) => status !== "requested"),
    ({ run_id }) => run_id,
  );
}

/** What calls said and were told goes with what their runs said. */
export function forgetCalls(tx: Db, runIds: readonly string[]): Promise<void> {
  return forgetWords(tx, runIds);
}
