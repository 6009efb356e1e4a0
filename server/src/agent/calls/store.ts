/** All SQL of the journal of tool calls. Callers have already checked access to the run. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentToolCallsTable } from "./tables.ts";

export type CallRow = Selectable<AgentToolCallsTable>;

/** A call as a step requests it. */
export type NewCall = Pick<CallRow, "id" | "tool" | "toolset_id" | "arguments">;

/** Returns the CTE `calls`, for a statement whose `run` is the row of a run that took a step. */
export function insertCalls(calls: readonly NewCall[]): RawBuilder<unknown> {
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
  Pick<
    CallRow,
    | "status"
    | "result"
    | "started_at"
    | "finished_at"
    | "command_id"
    | "command_sandbox_id"
    | "command_seconds"
  > & {
    /** The result with its pictures, as JSON text. */
    content: string;
  }
>;

/** Returns the CTE `call`, for a statement whose `run` is the row of the call's run. */
export function updateCall({ id, ...change }: CallChange): RawBuilder<unknown> {
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

/** A call without its arguments and its result, because both may be long. */
export type StartedCallRow = Pick<
  CallRow,
  "id" | "run_id" | "tool" | "toolset_id" | "status" | "started_at" | "finished_at"
>;

/** Lists the calls of several runs, in the order of their requests. */
export function callsOfRuns(db: Db, runIds: readonly string[]): Promise<StartedCallRow[]> {
  return db
    .selectFrom("agent_tool_calls")
    .select(["id", "run_id", "tool", "toolset_id", "status", "started_at", "finished_at"])
    .where("run_id", "=", sql<string>`any(${sql.val([...runIds])}::text[])`)
    .orderBy("step")
    .orderBy("position")
    .execute();
}

/** A command that may still run although its run has ended. */
export interface OrphanCommand {
  call_id: string;
  agent_id: string;
  command_id: string;
  sandbox_id: string;
}

/** Lists commands that may still run although their runs have ended. `except`: ids of calls to omit. */
export function findOrphanCommands(
  db: Db,
  page: { except: readonly string[]; limit: number },
): Promise<OrphanCommand[]> {
  return db
    .selectFrom("agent_tool_calls as c")
    .innerJoin("agent_runs as r", "r.id", "c.run_id")
    .select(["c.id as call_id", "r.agent_id"])
    .select((eb) => [
      eb.ref("c.command_id").$notNull().as("command_id"),
      eb.ref("c.command_sandbox_id").$notNull().as("sandbox_id"),
    ])
    .where("c.command_sandbox_id", "is not", null)
    .where("c.status", "=", "running")
    .where("r.finished_at", "is not", null)
    .where("c.id", "<>", sql<string>`all(${sql.val([...page.except])}::text[])`)
    .limit(page.limit)
    .execute();
}

/** Returns false while any process executes the call's run. */
export async function isRunEnded(db: Db, callId: string): Promise<boolean> {
  const row = await db
    .selectFrom("agent_tool_calls as c")
    .innerJoin("agent_runs as r", "r.id", "c.run_id")
    .select("c.id")
    .where("c.id", "=", callId)
    .where("r.finished_at", "is not", null)
    .executeTakeFirst();
  return row !== undefined;
}

/** Removes the command from a call that has no outcome. */
export async function clearCommand(db: Db, { call_id, command_id }: OrphanCommand): Promise<void> {
  await db
    .updateTable("agent_tool_calls")
    .set({ command_id: null, command_sandbox_id: null, command_seconds: null })
    .where("id", "=", call_id)
    .where("command_id", "=", command_id)
    .where("status", "=", "running")
    .execute();
}

export async function eraseCallTexts(tx: Db, runIds: readonly string[]): Promise<void> {
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
