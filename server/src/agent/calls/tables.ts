/** Columns as they are stored; migrations/0022_runs.sql and 0029_approvals.sql say what they mean. */
import type { ColumnType } from "kysely";

export interface AgentToolCallsTable {
  id: string;
  run_id: string;
  step: number;
  position: number;
  tool: string;
  toolset_id: string | null;
  /** Parsed when read, written as JSON text. */
  arguments: ColumnType<unknown, string, string>;
  status: "requested" | "running" | "completed" | "failed" | "denied" | "expired" | "unknown";
  result: string | null;
  started_at: Date | null;
  finished_at: Date | null;
}

export interface AgentCallTables {
  agent_tool_calls: AgentToolCallsTable;
}
