/** Columns of the tables in the database. Migrations 0022, 0023, 0057, 0066, 0092 and 0093 define these columns. */
import type { ColumnType, Generated } from "kysely";

export interface AgentSessionsTable {
  id: string;
  agent_id: string;
  workspace_id: string;
  end_user_id: string | null;
  /** Null if the session has ended and its version was deleted. */
  version: number | null;
  last_message: Generated<number>;
  bytes: Generated<number>;
  created_at: Date;
  last_used_at: Date;
  ended_at: Date | null;
  idle_minutes: Generated<number>;
  is_ephemeral: Generated<boolean>;
  trigger_id: Generated<string | null>;
  /** Hash of the key by which the trigger finds the session. */
  trigger_key: Generated<Buffer | null>;
}

export interface AgentMessagesTable {
  session_id: string;
  seq: number;
  run_id: string | null;
  kind: "seed" | "input" | "answer" | "repair" | "tools" | "summary";
  /** This value is parsed when read and written as JSON text. */
  message: ColumnType<unknown, string, never>;
  bytes: number;
}

export interface AgentSessionTables {
  agent_sessions: AgentSessionsTable;
  agent_messages: AgentMessagesTable;
}
