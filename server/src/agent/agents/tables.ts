/** Columns of the tables in the database. Migrations 0021 and 0066 define these columns. */
import type { ColumnType, Generated } from "kysely";

export interface AgentsTable {
  id: string;
  workspace_id: string;
  name: string;
  description: string | null;
  paused: Generated<boolean>;
  archived_at: Generated<Date | null>;
  worker_id: Generated<string>;
  latest_version: number;
  created_at: Date;
  updated_at: Date;
}

/** Column whose value is parsed when read and written as JSON text. */
type Json<T> = ColumnType<T, string, never>;

export interface AgentVersionsTable {
  agent_id: string;
  version: number;
  config: Json<unknown>;
  notes: string | null;
  created_by: Json<{ kind: string; id: string; label: string }>;
  created_at: Date;
}

interface AgentAliasesTable {
  agent_id: string;
  name: string;
  version: number;
  updated_at: Date;
}

interface AgentPausesTable {
  workspace_id: string;
  paused_at: Date;
}

export interface AgentTables {
  agents: AgentsTable;
  agent_versions: AgentVersionsTable;
  agent_aliases: AgentAliasesTable;
  agent_pauses: AgentPausesTable;
}
