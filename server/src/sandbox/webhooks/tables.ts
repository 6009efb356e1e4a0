import type { Generated } from "kysely";
import type { EventName } from "../events/names.ts";

/** Columns as they are stored; migrations/0006_webhooks.sql explains them. */
export interface SandboxWebhooksTable {
  id: string;
  workspace_id: string;
  url: string;
  event_types: EventName[] | null;
  secret_sealed: Buffer;
  active: Generated<boolean>;
  consecutive_failures: Generated<number>;
  last_delivery_at: Date | null;
  last_error: string | null;
  created_at: Date;
  lease: string | null;
  leased_until: Date | null;
}

export interface SandboxWebhookDeliveriesTable {
  seq: Generated<number>;
  id: string;
  webhook_id: string;
  lane: string;
  event: EventName;
  body: string;
  attempts: Generated<number>;
  due_at: Date;
}

export interface WebhookTables {
  sandbox_webhooks: SandboxWebhooksTable;
  sandbox_webhook_deliveries: SandboxWebhookDeliveriesTable;
}
