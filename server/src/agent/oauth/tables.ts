/** Columns of the tables in the database. Migrations 0032, 0040 and 0089 define these columns. */
import type { ColumnType, Generated } from "kysely";
import type { Provider } from "./provider/metadata.ts";

/** Column whose value is parsed when read and written as JSON text. */
type Json<T> = ColumnType<T, string, string>;

export interface AgentConnectionsTable {
  id: string;
  toolset_id: string;
  end_user_id: string;
  status: Generated<"connected" | "needs_reauth">;
  scope: string | null;
  expires_at: Date | null;
  connected_at: Date;
  sealed: Buffer;
  provider: Json<Provider>;
  resource: string | null;
  refreshing_until: Date | null;
  wanted: string | null;
}

export interface AgentConnectLinksTable {
  nonce_hash: Buffer;
  toolset_id: string;
  end_user_id: string;
  return_url: string | null;
  created_at: Date;
  expires_at: Date;
  opened_at: Date | null;
  cookie_hash: Buffer | null;
  state_hash: Buffer | null;
  sealed: Buffer | null;
  provider: ColumnType<Provider | null, string | null, string>;
  resource: string | null;
  scope: string | null;
  used_at: Date | null;
  wanted: string | null;
}

export interface AgentOauthClientsTable {
  toolset_id: string;
  issuer: string;
  redirect_uri: string;
  client_id: string;
  sealed: Buffer;
  expires_at: Date | null;
}

export interface AgentSignInWaitsTable {
  call_id: string;
  run_id: string;
  workspace_id: string;
  toolset_id: string;
  end_user_id: string;
  connection_id: string | null;
  status: "waiting" | "connected" | "expired" | "cancelled";
  created_at: Date;
  expires_at: Date;
}

export interface AgentConnectionTables {
  agent_sign_in_waits: AgentSignInWaitsTable;
  agent_connections: AgentConnectionsTable;
  agent_connect_links: AgentConnectLinksTable;
  agent_oauth_clients: AgentOauthClientsTable;
}
