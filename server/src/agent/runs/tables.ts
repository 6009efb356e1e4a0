/**
 * Columns of the tables in the database. Migrations 0022, 0029, 0058, 0067, 0068, 0092 and 0093 define these columns.
 */
import type { ColumnType, Generated } from "kysely";
import type { FinishReason, RunErrorCode, RunStatus } from "./states.ts";

interface SentTool {
  name: string;
  description: string;
  inputSchema: unknown;
}

/** Sources of a step's prompt, besides the version's config and the session's messages. */
export interface StepPrompt {
  /** The prompt has the messages after the sequence number `before`, up to `last`. */
  before: number;
  last: number;
  /** Sequence number of the last message that the summary covers. Null without a summary. */
  summary: number | null;
  remembered: string | null;
  at_most: number | null;
  /** Tools that were sent with the step. Absent if they equal the tools of the previous step. */
  tools?: SentTool[];
}

export interface AgentRunsTable {
  id: string;
  workspace_id: string;
  agent_id: string;
  session_id: string;
  session_created: boolean;
  version: number;
  end_user_id: string | null;
  trigger_type: "api" | "schedule" | "webhook";
  trigger_id: string | null;
  traceparent: string | null;
  status: RunStatus;
  error_code: RunErrorCode | null;
  error_message: string | null;
  finish_reason: FinishReason | null;
  output: string | null;
  output_expires_at: Date | null;
  expired: Generated<boolean>;
  steps: Generated<number>;
  input_tokens: Generated<number>;
  output_tokens: Generated<number>;
  cached_input_tokens: Generated<number>;
  reasoning_tokens: Generated<number>;
  active_ms: Generated<number>;
  last_event_id: Generated<number>;
  process_id: string | null;
  attempts: Generated<number>;
  /** Number of acquisitions that are no faults: after a decision, or after a graceful stop of a process. */
  resumed: Generated<number>;
  /** Number of resumes after a failure. */
  resumes: Generated<number>;
  /** Time until which the run waits for an overloaded model. */
  retry_at: Generated<Date | null>;
  model_waits: Generated<number>;
  /** True while earlier runs of the session have not ended. */
  waits_turn: Generated<boolean>;
  created_at: Date;
  started_at: Date | null;
  finished_at: Date | null;
}

interface AgentTurnsTable {
  position: Generated<number>;
  run_id: string;
  session_id: string;
  workspace_id: string;
  /** This value is parsed when read and written as JSON text. */
  message: ColumnType<unknown, string, never>;
  in_flight_max: number;
  expires_at: Date;
}

export interface AgentStepsTable {
  run_id: string;
  step: number;
  agent_id: string;
  end_user_id: string | null;
  model: string;
  finish_reason: string;
  input_tokens: number;
  output_tokens: number;
  cached_input_tokens: number;
  reasoning_tokens: number;
  prompt: ColumnType<StepPrompt | null, string | null, string | null>;
  started_at: Date;
  finished_at: Date;
}

export interface AgentEventsTable {
  run_id: string;
  seq: number;
  type: string;
  at: Date;
  /** This value is parsed when read and written as JSON text. */
  data: ColumnType<Record<string, unknown>, string, string>;
}

export interface AgentRunTables {
  agent_runs: AgentRunsTable;
  agent_turns: AgentTurnsTable;
  agent_steps: AgentStepsTable;
  agent_events: AgentEventsTable;
}
