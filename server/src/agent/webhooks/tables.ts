/** Columns of the tables in the database. Migrations 0034 and 0092 define these columns. */
import type { Generated } from "kysely";

export interface AgentWebhooksTable {
  id: string;
  workspace_id: string;
  agent_id: string;
  name: string;
  secret_sealed: Buffer;
  secret_hint: string;
  input_template: string;
  end_user_id: string | null;
  session: string | null;
  qualifier: Generated<string>;
  daily_cap: number | null;
  enabled: Generated<boolean>;
  counted_since: Date;
  runs_counted: Generated<number>;
  created_at: Date;
}

export interface AgentWebhookDeliveriesTable {
  webhook_id: string;
  delivery: Buffer;
  run_id: string;
  session_id: string;
  received_at: Date;
}

export interface AgentWebhookTables {
  agent_webhooks: AgentWebhooksTable;
  agent_webhook_deliveries: AgentWebhookDeliveriesTable;
}
