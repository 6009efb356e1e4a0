/**
 * Changes of a run. Each change is one statement, which updates the run's row. The further parts of the statement
 * (events, messages, step, calls) read the updated row, so they do nothing if the update matched no row. The statement
 * locks the run's row first, and then its session's row. Every other transaction keeps this order.
 */
import { type RawBuilder, type Selectable, sql } from "kysely";
import { endTokensSql } from "#accounts/tokens/run-tokens.ts";
import type { Db } from "#schema.ts";
import { type CallChange, callChanged, callsAsked, type NewCall } from "#agent/calls/calls.ts";
import { sessionFullError, hasRoom, type NewMessages, appendMessages } from "#agent/sessions/new-messages.ts";
import { storableJson } from "#agent/storable.ts";
import type { RunRow } from "../store.ts";
import type { AgentStepsTable } from "../tables.ts";
import type { Claim } from "./claim.ts";

export interface NewEvent {
  type: string;
  at: Date;
  data: Record<string, unknown>;
}

export type RunChange = Partial<
  Pick<
    RunRow,
    | "status"
    | "error_code"
    | "error_message"
    | "finish_reason"
    | "output"
    | "output_expires_at"
    | "finished_at"
    | "process_id"
    | "retry_at"
  >
> & {
  /** Active time to add, in milliseconds. A negative number subtracts time that was counted in advance. */
  activeMs?: number;
  /** Set if the run continues after a decision. */
  isResumed?: true;
  /** Set if the run is resumed after a failure. */
  isReopened?: true;
  /** Time that the run waits for a model, in milliseconds. This time counts as run time. */
  waitMs?: number;
};

/** A completed step of a run. */
type NewStep = Omit<
  Selectable<AgentStepsTable>,
  "run_id" | "step" | "agent_id" | "end_user_id" | "prompt"
> & {
  /** JSON of a `StepPrompt`. Null for a step that writes a summary. */
  prompt: string | null;
};

/** Further parts of a change, stored in the same statement. */
export interface ChangeParts {
  /** Completed step. The step's tokens are added to the run's tokens. */
  step?: NewStep;
  /** Calls that the step requested. */
  calls?: readonly NewCall[];
  call?: CallChange;
  /** Messages to append to the session. */
  words?: NewMessages | undefined;
}

/** Columns of a run that change during its execution. */
export type AdvancedRun = Pick<
  RunRow,
  | "status"
  | "steps"
  | "input_tokens"
  | "output_tokens"
  | "cached_input_tokens"
  | "reasoning_tokens"
  | "last_event_id"
>;

/**
 * Adds events and changes the run. Returns undefined if the claim is lost: another process acquired the run, or the run
 * has ended. Throws `session_full`.
 */
export async function advance(
  db: Db,
  claim: Claim,
  events: readonly NewEvent[],
  change: RunChange = {},
  parts: ChangeParts = {},
): Promise<AdvancedRun | undefined> {
  const isOurs = sql`id = ${claim.id} and attempts = ${claim.attempt} and process_id is not null
    and status in ('running', 'pending_approval')`;
  const { words } = parts;
  const isAllowed = words ? sql`${isOurs} and ${hasRoom(sql.ref("agent_runs.session_id"), words)}` : isOurs;
  const row = await changeRun(db, isAllowed, events, change, parts);
  if (row || !words) return row;
  const { rows } = await sql`select from agent_runs where ${isOurs}`.execute(db);
  if (rows.length > 0) throw sessionFullError();
  return undefined;
}

/** Changes a run without a claim. Returns undefined if the run has ended. */
export function changeFromOutside(
  tx: Db,
  id: string,
  events: readonly NewEvent[],
  change: RunChange,
): Promise<AdvancedRun | undefined> {
  const isActive = sql`id = ${id} and status in ('queued', 'running', 'pending_approval')`;
  return changeRun(tx, isActive, events, change, {});
}

/** Queues a failed run again. The caller holds the lock on the run's row. */
export function reopen(tx: Db, id: string, event: NewEvent): Promise<AdvancedRun | undefined> {
  return changeRun(
    tx,
    sql`id = ${id} and status = 'failed'`,
    [event],
    {
      status: "queued",
      error_code: null,
      error_message: null,
      finish_reason: null,
      output: null,
      output_expires_at: null,
      finished_at: null,
      retry_at: null,
      isReopened: true,
    },
    {},
  );
}

async function changeRun(
  db: Db,
  which: RawBuilder<unknown>,
  events: readonly NewEvent[],
  change: RunChange,
  { step, calls: asked, call, words }: ChangeParts,
): Promise<AdvancedRun | undefined> {
  // A run's platform tokens end with the run, and also while the run waits for a person without a process.
  const { status, process_id: process } = change;
  const isHeld = status === "running" || (status === "pending_approval" && process !== null);
  const isLeft = status !== undefined && !isHeld;
  const parts = [
    ...(events.length > 0 ? [insertEvents(events)] : []),
    ...(step ? [insertStep(step)] : []),
    ...(asked && asked.length > 0 ? [callsAsked(asked)] : []),
    ...(call ? [callChanged(call)] : []),
    ...(words ? [appendMessages(words)] : []),
    ...(isLeft ? [endTokensSql()] : []),
  ];
  const { rows } = await sql<AdvancedRun>`with run as (
      update agent_runs set ${sql.join(changes(events.length, change, step))} where ${which}
      returning id, session_id, agent_id, end_user_id, status, steps, input_tokens, output_tokens,
        cached_input_tokens, reasoning_tokens, last_event_id
    )${sql.join(
      parts.map((part) => sql`, ${part}`),
      sql``,
    )}
    select status, steps, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, last_event_id
    from run`.execute(db);
  return rows[0];
}

function changes(
  events: number,
  { activeMs = 0, waitMs = 0, isResumed, isReopened, ...columns }: RunChange,
  step: NewStep | undefined,
): RawBuilder<unknown>[] {
  const added = {
    last_event_id: events,
    ...(activeMs + waitMs !== 0 ? { active_ms: activeMs + waitMs } : {}),
    ...(waitMs > 0 ? { model_waits: 1 } : {}),
    ...(isResumed ? { resumed: 1 } : {}),
    ...(isReopened ? { resumes: 1 } : {}),
    ...(step
      ? {
          steps: 1,
          input_tokens: step.input_tokens,
          output_tokens: step.output_tokens,
          cached_input_tokens: step.cached_input_tokens,
          reasoning_tokens: step.reasoning_tokens,
        }
      : {}),
  };
  return [
    ...(step || isReopened ? [sql`model_waits = 0`] : []),
    // Processes that were lost before the failure no longer count towards the limit.
    ...(isReopened ? [sql`resumed = attempts`] : []),
    ...Object.entries(columns).map(([name, value]) => sql`${sql.ref(name)} = ${value}`),
    ...Object.entries(added).map(
      ([name, more]) => sql`${sql.ref(name)} = ${sql.ref(name)} + ${more}::bigint`,
    ),
  ];
}

function insertEvents(events: readonly NewEvent[]): RawBuilder<unknown> {
  return sql`events as (
    insert into agent_events (run_id, seq, type, at, data)
    select run.id, run.last_event_id - ${events.length}::int + e.place, e.type, e.at, e.data::json
    from run, unnest(${events.map(({ type }) => type)}::text[], ${events.map(({ at }) => at)}::timestamptz[],
      ${events.map(({ data }) => storableJson(data))}::text[]) with ordinality as e (type, at, data, place))`;
}

function insertStep(step: NewStep): RawBuilder<unknown> {
  const names = Object.keys(step).map((name) => sql.ref(name));
  return sql`step as (
    insert into agent_steps (run_id, step, agent_id, end_user_id, ${sql.join(names)})
    select id, steps, agent_id, end_user_id, ${sql.join(Object.values(step))} from run)`;
}
