/** Columns of the tables in the database, which migrations/0021_agents.sql defines. */
import type { CredentialProvider } from "../agents/config.ts";

export interface ModelCredentialsTable {
  id: string;
  workspace_id: string;
  provider: CredentialProvider;
  name: string;
  api_key_sealed: Buffer;
  hint: string;
  base_url: string | null;
  created_at: Date;
}

export interface ModelCredentialTables {
  model_credentials: ModelCredentialsTable;
}
