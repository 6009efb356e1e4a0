/** Columns of the tables in the database. Migrations 0022, 0029, 0090 and 0101 define these columns. */
import type { ColumnType } from "kysely";
import type { ToolContent } from "../tools/pictures.ts";

export interface AgentToolCallsTable {
  id: string;
  run_id: string;
  step: number;
  position: number;
  tool: string;
  toolset_id: string | null;
  /** This value is parsed when read and written as JSON text. */
  arguments: ColumnType<unknown, string, string>;
  status: "requested" | "running" | "completed" | "failed" | "denied" | "expired" | "unknown";
  result: string | null;
  /**
   * The result with its pictures. Null if the result has no pictures. The content is parsed when read and written as
   * JSON text.
   */
  content: ColumnType<ToolContent | null, string | null, string | null>;
  started_at: Date | null;
  finished_at: Date | null;
  command_id: string | null;
  command_sandbox_id: string | null;
  command_seconds: number | null;
}

export interface AgentCallTables {
  agent_tool_calls: AgentToolCallsTable;
}
