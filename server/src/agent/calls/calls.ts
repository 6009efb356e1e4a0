/**
 * The journal of tool calls: request, start and outcome of each call. A row is written before a call starts and after
 * it ends. So a call with a stored result never runs again, and a started call without a result has an unknown outcome.
 */
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { storableJson } from "../storable.ts";
import type { ToolContent } from "../tools/pictures.ts";
import { type CallChange, type NewCall, type StartedCallRow, type CallRow, callsOfRuns } from "./store.ts";

export type Call = CallRow;
export type StartedCall = StartedCallRow;
export {
  updateCall as callChanged,
  type CallChange,
  insertCalls as callsAsked,
  findOrphanCommands,
  clearCommand as forgetCommand,
  isRunEnded,
  type NewCall,
  type OrphanCommand,
} from "./store.ts";

export interface Outcome {
  status: "completed" | "failed" | "denied" | "expired" | "unknown";
  /** Result as text for the model. */
  result: string;
  /** The result with its pictures. Undefined if the result has no pictures. */
  content?: ToolContent | undefined;
}

/** A command in a session's machine. The call that started the command waits for its exit. */
export interface CallCommand {
  /** Id of the command inside the machine. Lists of a sandbox's commands do not contain this id. */
  id: string;
  sandboxId: string;
  /** The command's time limit, in seconds. */
  seconds: number;
}

export const newCallId = (): string => newId("call_");

/** Returns the row of a call as its step inserts it. */
export function toRequestedCall(runId: string, step: number, position: number, call: NewCall): Call {
  const nothing = {
    result: null,
    content: null,
    started_at: null,
    finished_at: null,
    command_id: null,
    command_sandbox_id: null,
    command_seconds: null,
  };
  return { ...call, ...nothing, run_id: runId, step, position, status: "requested" };
}

/** Returns the change that marks a call as started. `commandId` is set for a call that starts a command. */
export const markStarted = (id: string, at: Date, commandId: string | null): CallChange => ({
  id,
  status: "running",
  started_at: at,
  command_id: commandId,
});

export const newCommandId = (): string => newId("tool_");

/** Returns the change that stores the command of a call. The change is committed before the command starts. */
export const markCommand = (id: string, command: CallCommand): CallChange => ({
  id,
  command_id: command.id,
  command_sandbox_id: command.sandboxId,
  command_seconds: command.seconds,
});

/** Returns the call's command. Returns undefined if the command has not started, or if the call has no command. */
export function commandOf(call: Call): CallCommand | undefined {
  const { command_id: id, command_sandbox_id: sandboxId, command_seconds: seconds } = call;
  return id !== null && sandboxId !== null && seconds !== null ? { id, sandboxId, seconds } : undefined;
}

export const markEnded = (id: string, { status, result, content }: Outcome, at: Date): CallChange => ({
  id,
  status,
  result,
  ...(content ? { content: storableJson(content) } : {}),
  finished_at: at,
});

/** Returns the started and decided calls of each run. */
export async function listStartedCalls(
  db: Db,
  runIds: readonly string[],
): Promise<Map<string, StartedCall[]>> {
  if (runIds.length === 0) return new Map();
  const rows = await callsOfRuns(db, runIds);
  return Map.groupBy(
    rows.filter(({ status }) => status !== "requested"),
    ({ run_id }) => run_id,
  );
}
