/**
 * Webhooks: addresses that receive events. This folder owns the registrations and the pending deliveries. Every
 * committed event reaches each active webhook that subscribed to it, in the order of its sandbox, at least once, signed
 * over its exact bytes. A receiver that fails twenty times in a row is disabled. A webhook cannot make this server call
 * addresses inside its own network.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { newSecret } from "#accounts/secrets.ts";
import { homeWorkspace, requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { newId } from "#lib/ids.ts";
import { webhookLimitReached, webhookNotFound, webhookUrlRefused } from "./errors.ts";
import { webhooksMax } from "./limits.ts";
import { toWebhook, type Webhook, type WebhookCreate } from "./schema.ts";
import { checkAddress, DeliveryError } from "./send.ts";
import {
  deleteWebhook,
  enableRow,
  insertWebhook,
  listWebhooks,
  lockAndCountWebhooks,
  type WebhookRow,
} from "./store.ts";

type Needs = Pick<App, "db" | "secrets" | "config" | "clock">;

/** Registers a webhook. The secret appears only in this response. */
export async function register(app: Needs, actor: Actor, input: WebhookCreate): Promise<Webhook> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  const url = new URL(input.url);
  const opened = parseOpenedHosts(app.config.allowPrivateHosts);
  await checkAddress(url, opened, workspace.id).catch((error: unknown) => {
    throw error instanceof DeliveryError ? webhookUrlRefused(error.message) : error;
  });
  const id = newId("whk_");
  const secret = newSecret("whsec_");
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCountWebhooks(tx, workspace.id)) >= webhooksMax) throw webhookLimitReached(webhooksMax);
    const made = await insertWebhook(tx, {
      id,
      workspace_id: workspace.id,
      url: url.href,
      event_types: input.event_types ? [...new Set(input.event_types)] : null,
      secret_sealed: app.secrets.seal(secret, place(id)),
      created_at: app.clock.now(),
    });
    await recordActivity(tx, actor, "sandbox_webhook.created", target(made), workspace.id);
    return made;
  });
  return { ...toWebhook(row), secret };
}

export async function list(
  app: Needs,
  actor: Actor,
): Promise<{ items: Webhook[]; next_cursor: string | null }> {
  const rows = await listWebhooks(app.db, workspaceIds(actor));
  // At most ten for each workspace, so there is never a second page.
  return { items: rows.map(toWebhook), next_cursor: null };
}

export async function get(app: Needs, actor: Actor, id: string): Promise<Webhook> {
  const found = (await list(app, actor)).items.find((webhook) => webhook.id === id);
  if (!found) throw webhookNotFound();
  return found;
}

/** Enables a webhook and resets its failures. Events during the disabled time are not sent. */
export async function enable(app: Needs, actor: Actor, id: string): Promise<Webhook> {
  return app.db.transaction().execute(async (tx) => {
    const row = await enableRow(tx, id, workspaceIds(actor));
    if (!row) throw webhookNotFound();
    await recordActivity(tx, actor, "sandbox_webhook.enabled", target(row), row.workspace_id);
    return toWebhook(row);
  });
}

/** Deletes the webhook and its pending deliveries. */
export async function remove(app: Needs, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteWebhook(tx, id, workspaceIds(actor));
    if (!row) throw webhookNotFound();
    await recordActivity(tx, actor, "sandbox_webhook.deleted", target(row), row.workspace_id);
  });
}

export function openSecret(app: Pick<App, "secrets">, row: WebhookRow): Buffer {
  return app.secrets.open(row.secret_sealed, place(row.id));
}

function place(id: string): string {
  return `sandbox_webhooks:${id}:secret`;
}

/** Returns the webhook as a target of audit entries. Only the host is logged, because a path may contain a secret. */
function target(row: WebhookRow): { kind: string; id: string; label: string } {
  return { kind: "sandbox_webhook", id: row.id, label: new URL(row.url).host };
}
