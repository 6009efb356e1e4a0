/** All SQL of the journal of tool calls. A run's owner was asked for by whoever comes here. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#db/db.ts";
import type { AgentToolCallsTable } from "./tables.ts";

export type CallRow = Selectable<AgentToolCallsTable>;

export async function insertCalls(tx: Db, calls: readonly Insertable<AgentToolCallsTable>[]): Promise<void> {
  if (calls.length > 0)
    await tx
      .insertInto("agent_tool_calls")
      .values([...calls])
      .execute();
}

export function callsOfStep(db: Db, runId: string, step: number): Promise<CallRow[]> {
  return db
    .selectFrom("agent_tool_calls")
    .selectAll()
    .where("run_id", "=", runId)
    .where("step", "=", step)
    .orderBy("position")
    .execute();
}

/** A call without what it said and was told, which may be long. */
export type CalledRow = Pick<
  CallRow,
  "id" | "run_id" | "tool" | "toolset_id" | "status" | "started_at" | "finished_at"
>;

/** Of several runs, in the order they were asked for. */
export function callsOfRuns(db: Db, runIds: readonly string[]): Promise<CalledRow[]> {
  return db
    .selectFrom("agent_tool_calls")
    .select(["id", "run_id", "tool", "toolset_id", "status", "started_at", "finished_at"])
    .where("run_id", "=", sql<string>`any(${sql.val([...runIds])}::text[])`)
    .orderBy("step")
    .orderBy("position")
    .execute();
}

export async function changeCall(
  tx: Db,
  id: string,
  change: Partial<Pick<CallRow, "status" | "result" | "started_at" | "finished_at">>,
): Promise<void> {
  await tx.updateTable("agent_tool_calls").set(change).where("id", "=", id).execute();
}

export async function forgetWords(tx: Db, runIds: readonly string[]): Promise<void> {
  await tx
    .updateTable("agent_tool_calls")
    .set({ arguments: "null", result: null })
    .where("run_id", "=", sql<string>`any(${sql.val([...runIds])}::text[])`)
    .execute();
}
