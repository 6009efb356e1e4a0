/** Columns as they are stored; migrations/0022_runs.sql says what they mean. */
import type { ColumnType } from "kysely";
import type { HttpTool, ToolOverride } from "./schema.ts";

/** Parsed when read, written as JSON text. */
type Json<T> = ColumnType<T, string, string>;

export interface AgentToolsetsTable {
  id: string;
  workspace_id: string;
  name: string;
  kind: "http";
  url: string;
  auth_header_name: string | null;
  auth_secret_sealed: Buffer | null;
  secret_hint: string | null;
  http_tools: Json<HttpTool[]>;
  tool_overrides: Json<Record<string, ToolOverride>>;
  created_at: Date;
}

export interface AgentToolsetTables {
  agent_toolsets: AgentToolsetsTable;
}
