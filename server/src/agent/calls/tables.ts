/** Columns as they are stored; migrations/0022_runs.sql, 0029_approvals.sql and 0090_pictures_of_tools.sql describe them. */
import type { ColumnType } from "kysely";
import type { ToolContent } from "../tools/pictures.ts";

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
  /** The result with its pictures. Null if it has none. Parsed when read, written as JSON text. */
  content: ColumnType<ToolContent | null, string | null, string | null>;
  started_at: Date | null;
  finished_at: Date | null;
}

export interface AgentCallTables {
  agent_tool_calls: AgentToolCallsTable;
}
