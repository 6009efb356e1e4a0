/**
 * All SQL of the webhooks tables. The workspaces a caller can reach are an argument of the functions for callers.
 */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { EventName } from "../events/names.ts";
import type { SandboxWebhookDeliveriesTable, SandboxWebhooksTable } from "./tables.ts";

export type WebhookRow = Selectable<SandboxWebhooksTable>;
export type DeliveryRow = Selectable<SandboxWebhookDeliveriesTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

// ---- operations of callers

/** Counts a workspace's webhooks, and blocks new webhooks until this transaction ends. */
export async function lockAndCountWebhooks(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 3))`.execute(tx);
  const { count } = await tx
    .selectFrom("sandbox_webhooks")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export function insertWebhook(
  tx: Db,
  webhook: Pick<WebhookRow, "id" | "workspace_id" | "url" | "event_types" | "secret_sealed" | "created_at">,
): Promise<WebhookRow> {
  return tx.insertInto("sandbox_webhooks").values(webhook).returningAll().executeTakeFirstOrThrow();
}

export function listWebhooks(db: Db, workspaceIds: readonly string[]): Promise<WebhookRow[]> {
  return db
    .selectFrom("sandbox_webhooks")
    .selectAll()
    .where("workspace_id", "=", among(workspaceIds))
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

export function enableRow(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<WebhookRow | undefined> {
  return tx
    .updateTable("sandbox_webhooks")
    .set({ active: true, consecutive_failures: 0, last_error: null })
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .returningAll()
    .executeTakeFirst();
}

export function deleteWebhook(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<WebhookRow | undefined> {
  return tx
    .deleteFrom("sandbox_webhooks")
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .returningAll()
    .executeTakeFirst();
}

// ---- due deliveries

export async function findListeners(tx: Db, workspaceId: string, event: EventName): Promise<string[]> {
  const rows = await tx
    .selectFrom("sandbox_webhooks")
    .select("id")
    .where("workspace_id", "=", workspaceId)
    .where("active", "=", true)
    .where(sql<boolean>`(event_types is null or ${event} = any(event_types))`)
    .orderBy("id")
    .execute();
  return rows.map(({ id }) => id);
}

export async function insertDelivery(
  tx: Db,
  delivery: Omit<Insertable<SandboxWebhookDeliveriesTable>, "seq" | "attempts">,
): Promise<void> {
  await tx.insertInto("sandbox_webhook_deliveries").values(delivery).execute();
}

/** Returns the oldest due delivery of each lane, in ascending order. */
export function dueDeliveries(
  db: Db,
  webhookId: string,
  wanted: { now: Date; exceptLanes: readonly string[]; limit: number },
): Promise<DeliveryRow[]> {
  return db
    .selectFrom("sandbox_webhook_deliveries as d")
    .selectAll()
    .where("webhook_id", "=", webhookId)
    .where("due_at", "<=", wanted.now)
    .where("lane", "<>", sql<string>`all(${sql.val([...wanted.exceptLanes])}::text[])`)
    .where(
      sql<boolean>`not exists (
        select from sandbox_webhook_deliveries as earlier
        where earlier.webhook_id = d.webhook_id and earlier.lane = d.lane and earlier.seq < d.seq)`,
    )
    .orderBy("seq")
    .limit(wanted.limit)
    .execute();
}

/** Returns the oldest delivery of the same lane, if it is due. */
export async function nextOfLane(
  db: Db,
  { webhook_id, lane }: DeliveryRow,
  now: Date,
): Promise<DeliveryRow | undefined> {
  const oldest = await db
    .selectFrom("sandbox_webhook_deliveries")
    .selectAll()
    .where("webhook_id", "=", webhook_id)
    .where("lane", "=", lane)
    .orderBy("seq")
    .limit(1)
    .executeTakeFirst();
  return oldest && oldest.due_at <= now ? oldest : undefined;
}

/** Returns the time of the next due delivery. A lane is due when its oldest delivery is. */
export async function nextDue(db: Db, webhookId: string): Promise<Date | undefined> {
  const heads = db
    .selectFrom("sandbox_webhook_deliveries")
    .distinctOn("lane")
    .select(["lane", "due_at"])
    .where("webhook_id", "=", webhookId)
    .orderBy("lane")
    .orderBy("seq");
  const row = await db
    .selectFrom(heads.as("heads"))
    .select((eb) => eb.fn.min("due_at").as("due_at"))
    .executeTakeFirst();
  return row?.due_at ?? undefined;
}

export async function deleteDelivery(tx: Db, seq: number): Promise<void> {
  await tx.deleteFrom("sandbox_webhook_deliveries").where("seq", "=", seq).execute();
}

export async function deleteDeliveriesOf(tx: Db, webhookId: string): Promise<void> {
  await tx.deleteFrom("sandbox_webhook_deliveries").where("webhook_id", "=", webhookId).execute();
}

export async function postpone(tx: Db, seq: number, dueAt: Date): Promise<void> {
  await tx
    .updateTable("sandbox_webhook_deliveries")
    .set((eb) => ({ attempts: eb("attempts", "+", 1), due_at: dueAt }))
    .where("seq", "=", seq)
    .execute();
}

// ---- results

/**
 * Records a success. The row is written at most once a second while all deliveries succeed, because deliveries of many
 * sandboxes would wait for this row.
 */
export async function noteSuccess(tx: Db, id: string, at: Date): Promise<void> {
  await tx
    .updateTable("sandbox_webhooks")
    .set({ consecutive_failures: 0, last_delivery_at: at, last_error: null })
    .where("id", "=", id)
    .where((eb) =>
      eb.or([
        eb("consecutive_failures", ">", 0),
        eb("last_error", "is not", null),
        eb("last_delivery_at", "is", null),
        eb("last_delivery_at", "<", new Date(at.getTime() - 1000)),
      ]),
    )
    .execute();
}

export async function noteAttempt(tx: Db, id: string, at: Date, error: string): Promise<void> {
  await tx
    .updateTable("sandbox_webhooks")
    .set({ last_delivery_at: at, last_error: error })
    .where("id", "=", id)
    .execute();
}

/** Counts a failed delivery, and disables the webhook at the maximum of failures. */
export async function noteFailure(
  tx: Db,
  id: string,
  failure: { at: Date; error: string; most: number },
): Promise<Pick<WebhookRow, "active" | "consecutive_failures"> | undefined> {
  return tx
    .updateTable("sandbox_webhooks")
    .set((eb) => ({
      consecutive_failures: eb("consecutive_failures", "+", 1),
      active: sql<boolean>`active and consecutive_failures + 1 < ${failure.most}`,
      last_delivery_at: failure.at,
      last_error: failure.error,
    }))
    .where("id", "=", id)
    .returning(["active", "consecutive_failures"])
    .executeTakeFirst();
}

// ---- the lease of a webhook

/**
 * Acquires the lease of the webhook until the given time; undefined if another process has it, or the webhook was
 * deleted.
 */
export function takeLease(
  db: Db,
  id: string,
  turn: { lease: string; now: Date; until: Date },
): Promise<WebhookRow | undefined> {
  return db
    .updateTable("sandbox_webhooks")
    .set({ lease: turn.lease, leased_until: turn.until })
    .where("id", "=", id)
    .where((eb) =>
      eb.or([eb("lease", "is", null), eb("lease", "=", turn.lease), eb("leased_until", "<", turn.now)]),
    )
    .returningAll()
    .executeTakeFirst();
}

export async function findLease(
  db: Db,
  id: string,
): Promise<{ workspaceId: string; until: Date | null } | undefined> {
  const row = await db
    .selectFrom("sandbox_webhooks")
    .select(["workspace_id", "leased_until"])
    .where("id", "=", id)
    .executeTakeFirst();
  return row && { workspaceId: row.workspace_id, until: row.leased_until };
}

export async function releaseLease(db: Db, id: string, lease: string): Promise<void> {
  await db
    .updateTable("sandbox_webhooks")
    .set({ lease: null, leased_until: null })
    .where("id", "=", id)
    .where("lease", "=", lease)
    .execute();
}
