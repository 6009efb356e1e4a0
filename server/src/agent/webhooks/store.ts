/** All SQL of agents' webhooks. Access to an agent includes its webhooks. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentWebhookDeliveriesTable, AgentWebhooksTable } from "./tables.ts";

export type WebhookRow = Selectable<AgentWebhooksTable>;
export type DeliveryRow = Selectable<AgentWebhookDeliveriesTable>;

/** Counts the agent's webhooks, and blocks other creations for the agent until the transaction ends. */
export async function lockAndCount(tx: Db, agentId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${agentId}, 45))`.execute(tx);
  const { count } = await tx
    .selectFrom("agent_webhooks")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("agent_id", "=", agentId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export function insertWebhook(tx: Db, webhook: Insertable<AgentWebhooksTable>): Promise<WebhookRow> {
  return tx.insertInto("agent_webhooks").values(webhook).returningAll().executeTakeFirstOrThrow();
}

export function listWebhooks(db: Db, agentId: string): Promise<WebhookRow[]> {
  return db
    .selectFrom("agent_webhooks")
    .selectAll()
    .where("agent_id", "=", agentId)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

/** Changes a webhook and returns its row. Returns undefined if the agent has no such webhook. */
export function changeWebhook(
  tx: Db,
  agentId: string,
  id: string,
  change: Partial<
    Pick<
      WebhookRow,
      | "name"
      | "input_template"
      | "end_user_id"
      | "session"
      | "qualifier"
      | "daily_cap"
      | "enabled"
      | "secret_sealed"
      | "secret_hint"
    >
  >,
): Promise<WebhookRow | undefined> {
  return (
    tx
      .updateTable("agent_webhooks")
      // At least one column is set, because SQL has no empty update.
      .set({ ...change, id })
      .where("id", "=", id)
      .where("agent_id", "=", agentId)
      .returningAll()
      .executeTakeFirst()
  );
}

export function deleteWebhook(tx: Db, agentId: string, id: string): Promise<WebhookRow | undefined> {
  return tx
    .deleteFrom("agent_webhooks")
    .where("id", "=", id)
    .where("agent_id", "=", agentId)
    .returningAll()
    .executeTakeFirst();
}

/** Deletes webhooks whose runs are all for this end user, and returns the ids of the webhooks. */
export async function deleteWebhooksOf(tx: Db, agentId: string, endUserId: string): Promise<string[]> {
  const rows = await tx
    .deleteFrom("agent_webhooks")
    .where("agent_id", "=", agentId)
    .where("end_user_id", "=", endUserId)
    .returning("id")
    .execute();
  return rows.map(({ id }) => id);
}

// ---- deliveries: a secret authorizes the access to this webhook only

export type ReceivingWebhook = WebhookRow & { agent_name: string; worker_id: string };

export function findReceiving(db: Db, id: string): Promise<ReceivingWebhook | undefined> {
  return db
    .selectFrom("agent_webhooks as w")
    .innerJoin("agents as a", "a.id", "w.agent_id")
    .selectAll("w")
    .select(["a.name as agent_name", "a.worker_id"])
    .where("w.id", "=", id)
    .executeTakeFirst();
}

/** Locks the webhook and its count until the transaction ends, and returns the row. */
export function lockWebhook(tx: Db, id: string): Promise<WebhookRow | undefined> {
  return tx.selectFrom("agent_webhooks").selectAll().where("id", "=", id).forUpdate().executeTakeFirst();
}

export async function setCount(tx: Db, id: string, since: Date, count: number): Promise<void> {
  await tx
    .updateTable("agent_webhooks")
    .set({ counted_since: since, runs_counted: count })
    .where("id", "=", id)
    .execute();
}

export function findDelivery(
  db: Db,
  webhookId: string,
  delivery: Buffer,
  since: Date,
): Promise<DeliveryRow | undefined> {
  return db
    .selectFrom("agent_webhook_deliveries")
    .selectAll()
    .where("webhook_id", "=", webhookId)
    .where("delivery", "=", delivery)
    .where("received_at", ">", since)
    .executeTakeFirst();
}

/**
 * Inserts a delivery. Returns false if the same id was inserted after `since`. Replaces an older delivery with the same
 * id.
 */
export async function insertDelivery(tx: Db, row: DeliveryRow, since: Date): Promise<boolean> {
  const { run_id, session_id, received_at } = row;
  const inserted = await tx
    .insertInto("agent_webhook_deliveries")
    .values(row)
    .onConflict((conflict) =>
      conflict
        .columns(["webhook_id", "delivery"])
        .doUpdateSet({ run_id, session_id, received_at })
        .where("agent_webhook_deliveries.received_at", "<=", since),
    )
    .returning("run_id")
    .executeTakeFirst();
  return inserted !== undefined;
}

export async function deleteDeliveriesBefore(db: Db, before: Date): Promise<void> {
  await db.deleteFrom("agent_webhook_deliveries").where("received_at", "<=", before).execute();
}
