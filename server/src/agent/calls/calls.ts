/**
 * The journal of tool calls. It owns what was asked for, whether it began, and what came of it, and is written before
 * and after: so a result that is there is never asked for again, and a call that began and has none is known as one
 * whose outcome nobody knows.
 */
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { storableJson } from "../storable.ts";
import type { ToolContent } from "../tools/pictures.ts";
import {
  type CallChange,
  type NewCall,
  type CalledRow,
  type CallRow,
  callsOfRuns,
  callsOfStep,
  forgetWords,
  resetCall,
} from "./store.ts";

export type Call = CallRow;
export type Called = CalledRow;
export {
  callChanged,
  type CallChange,
  callsAsked,
  findOrphanCommands,
  forgetCommand,
  isRunEnded,
  type NewCall,
  type OrphanCommand,
} from "./store.ts";

export interface Outcome {
  status: "completed" | "failed" | "denied" | "expired" | "unknown";
  /** What the model is told. */
  result: string;
  /** The result with its pictures, if there are any. */
  content?: ToolContent | undefined;
}

/** A command in a session's machine that a call waits for. */
export interface CallCommand {
  /** In the machine, and no id of a sandbox's own commands: its owner's lists do not have it. */
  id: string;
  sandboxId: string;
  /** The command's time limit. */
  seconds: number;
}

export const newCallId = (): string => newId("call_");

export function callsOf(db: Db, runId: string, step: number): Promise<Call[]> {
  return callsOfStep(db, runId, step);
}

/** As it is in the journal once its step is. */
export function requested(runId: string, step: number, position: number, call: NewCall): Call {
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

/** `commandId`: for a call that is going to start a command. */
export const began = (id: string, at: Date, commandId: string | null): CallChange => ({
  id,
  status: "running",
  started_at: at,
  command_id: commandId,
});

export const newCommandId = (): string => newId("tool_");

/** Stores the command of a call before the command starts. */
export const commandStarts = (id: string, command: CallCommand): CallChange => ({
  id,
  command_id: command.id,
  command_sandbox_id: command.sandboxId,
  command_seconds: command.seconds,
});

/** Undefined if the call's command has not started, or the call has none. */
export function commandOf(call: Call): CallCommand | undefined {
  const { command_id: id, command_sandbox_id: sandboxId, command_seconds: seconds } = call;
  return id !== null && sandboxId !== null && seconds !== null ? { id, sandboxId, seconds } : undefined;
}

/** Records that a started call had no effect, so that it may be made later. */
export function takeBack(tx: Db, id: string): Promise<void> {
  return resetCall(tx, id);
}

export const ended = (id: string, { status, result, content }: Outcome, at: Date): CallChange => ({
  id,
  status,
  result,
  ...(content ? { content: storableJson(content) } : {}),
  finished_at: at,
});

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
