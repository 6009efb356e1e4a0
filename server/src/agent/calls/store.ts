/** All SQL of the journal of tool calls. A run's owner was asked for by whoever comes here. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#db/db.ts";
import type { AgentToolCallsTable } from "./tables.ts";

export type CallRow = Selectable<AgentToolCallsTable>;

/** As a step asks for it. */
export type NewCall = Pick<CallRow, "id" | "tool" | "toolset_id" | "arguments">;

/** Of a statement whose `run` is the row of a run that took a step. */
export function callsAsked(calls: readonly NewCall[]): RawBuilder<unknown> {
  const column = (values: readonly (string | null)[]) => sql`${sql.val(values)}::text[]`;
  return sql`calls as (
    insert into agent_tool_calls (id, run_id, step, position, tool, toolset_id, arguments, status)
    select c.id, run.id, run.steps, c.place - 1, c.tool, c.toolset_id, c.arguments::json, 'requested'
    from run, unnest(${column(calls.map(({ id }) => id))}, ${column(calls.map(({ tool }) => tool))},
      ${column(calls.map(({ toolset_id }) => toolset_id))},
      ${column(calls.map((call) => JSON.stringify(call.arguments)))})
      with ordinality as c (id, tool, toolset_id, arguments, place))`;
}

export type CallChange = { id: string } & Partial<
  Pick<CallRow, "status" | "result" | "started_at" | "finished_at"> & {
    /** JSON text. */
    content: string;
  }
>;

/** Of a statement whose `run` is the row of the call's run. */
export function callChanged({ id, ...change }: CallChange): RawBuilder<unknown> {
  const set = Object.entries(change).map(([name, value]) => sql`${sql.ref(name)} = ${value}`);
  return sql`call as (
    update agent_tool_calls set ${sql.join(set)} from run
    where agent_tool_calls.id = ${id} and agent_tool_calls.run_id = run.id)`;
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

export async function forgetWords(tx: Db, runIds: readonly string[]): Promise<void> {
  await tx
    .updateTable("agent_tool_calls")
    .set({ arguments: "null", result: null, content: null })
    .where("run_id", "=", sql<string>`any(${sql.val([...runIds])}::text[])`)
    .execute();
}

export async function resetCall(tx: Db, id: string): Promise<void> {
  await tx
    .updateTable("agent_tool_calls")
    .set({ status: "requested", started_at: null })
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}
