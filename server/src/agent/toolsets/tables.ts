/** Columns of the tables in the database. Migrations 0022, 0031 and 0064 define these columns. */
import type { ColumnType, Generated } from "kysely";
import type { CachedTool } from "../mcp/cached-tool.ts";
import type { HttpTool, ToolOverride } from "./tools/tool-schema.ts";

/** Column whose value is parsed when read and written as JSON text. */
type Json<T> = ColumnType<T, string, string>;

export interface AgentToolsetsTable {
  id: string;
  workspace_id: string;
  name: string;
  kind: "http" | "mcp";
  url: string;
  auth_header_name: string | null;
  auth_secret_sealed: Buffer | null;
  secret_hint: string | null;
  /** Definitions of HTTP tools, with hints instead of header values. */
  http_tools: Json<HttpTool[]>;
  http_headers_sealed: Buffer | null;
  tool_overrides: Json<Record<string, ToolOverride>>;
  auth_type: "none" | "header" | "oauth";
  catalog_slug: string | null;
  oauth_client_id: string | null;
  oauth_client_secret_sealed: Buffer | null;
  oauth_scopes: string | null;
  oauth_per_end_user: Generated<boolean>;
  tools_cached: ColumnType<CachedTool[], string | undefined, string>;
  status: Generated<"ready" | "unreachable" | "auth_required">;
  last_refreshed_at: Date | null;
  last_error: string | null;
  created_at: Date;
}

export interface AgentToolsetTables {
  agent_toolsets: AgentToolsetsTable;
}
