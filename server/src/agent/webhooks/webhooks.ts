/**
 * Webhooks of agents: addresses at which others ask an agent something by delivering what happened. This folder owns
 * them and their secrets. It promises that nothing is run for whoever does not know the secret, that the same delivery
 * is one run, that a day has no more runs than its cap, and that a secret is told once, to whoever asked for it.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import { type AgentRecord, getAgent, lockWritableAgent } from "../agents/agents.ts";
import { invalidField } from "../errors.ts";
import { requireServedHeld } from "../workers/grant.ts";
import { dayOf } from "./day.ts";
import { webhookLimitReached, webhookNotFound } from "./errors.ts";
import {
  defaultTemplate,
  toWebhook,
  type Webhook,
  type WebhookCreate,
  type WebhookUpdate,
  type WebhookWithSecret,
} from "./schema.ts";
import { newWebhookSecret } from "./signature.ts";
import {
  changeWebhook,
  deleteWebhook,
  insertWebhook,
  listWebhooks,
  lockAndCount,
  type WebhookRow,
} from "./store.ts";
import { whyNotTemplate } from "./template.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

const webhooksMax = 50;

export async function list(app: Needs, actor: Actor, reference: string): Promise<{ items: Webhook[] }> {
  const agent = await getAgent(app.db, actor, reference);
  return { items: (await listWebhooks(app.db, agent.id)).map((row) => toWebhook(app, row)) };
}

export async function get(app: Needs, actor: Actor, reference: string, id: string): Promise<Webhook> {
  const found = (await list(app, actor, reference)).items.find((webhook) => webhook.id === id);
  if (!found) throw webhookNotFound();
  return found;
}

/** The secret is in this answer and in no other. */
export async function create(
  app: Needs,
  actor: Actor,
  reference: string,
  input: WebhookCreate,
): Promise<WebhookWithSecret> {
  requireTemplate(input.input_template);
  const id = newId("agw_");
  const secret = newWebhookSecret();
  const row = await app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    await requireServedHeld(tx, actor, agent);
    if ((await lockAndCount(tx, agent.id)) >= webhooksMax) throw webhookLimitReached(webhooksMax);
    const now = app.clock.now();
    const made = await insertWebhook(tx, {
      id,
      workspace_id: agent.workspace_id,
      agent_id: agent.id,
      name: input.name,
      ...sealed(app, id, secret),
      input_template: input.input_template ?? defaultTemplate,
      daily_cap: input.daily_cap ?? null,
      counted_since: dayOf(now),
      created_at: now,
    });
    await record(tx, actor, agent, "agent_webhook.created", made);
    return made;
  });
  return { ...toWebhook(app, row), secret };
}

export async function update(
  app: Needs,
  actor: Actor,
  reference: string,
  id: string,
  input: WebhookUpdate,
): Promise<Webhook> {
  requireTemplate(input.input_template ?? undefined);
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    // Disabling a webhook needs no further scope.
    if (input.enabled !== false) await requireServedHeld(tx, actor, agent);
    const row = await changeWebhook(tx, agent.id, id, {
      ...(input.name === undefined ? {} : { name: input.name }),
      ...(input.input_template === undefined
        ? {}
        : { input_template: input.input_template ?? defaultTemplate }),
      ...(input.daily_cap === undefined ? {} : { daily_cap: input.daily_cap }),
      ...(input.enabled === undefined ? {} : { enabled: input.enabled }),
    });
    if (!row) throw webhookNotFound();
    await record(tx, actor, agent, "agent_webhook.updated", row, { fields: Object.keys(input) });
    return toWebhook(app, row);
  });
}

/** What was signed with the secret before is refused from then on. */
export async function rotate(
  app: Needs,
  actor: Actor,
  reference: string,
  id: string,
): Promise<WebhookWithSecret> {
  const secret = newWebhookSecret();
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const row = await changeWebhook(tx, agent.id, id, sealed(app, id, secret));
    if (!row) throw webhookNotFound();
    await record(tx, actor, agent, "agent_webhook.rotated", row);
    return { ...toWebhook(app, row), secret };
  });
}

export async function remove(app: Needs, actor: Actor, reference: string, id: string): Promise<void> {
  const agent = await getAgent(app.db, actor, reference);
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteWebhook(tx, agent.id, id);
    if (!row) throw webhookNotFound();
    await record(tx, actor, agent, "agent_webhook.deleted", row);
  });
}

export function openSecret(app: Pick<App, "secrets">, row: WebhookRow): string {
  return app.secrets.open(row.secret_sealed, placeOf(row.id)).toString("utf8");
}

function sealed(app: Pick<App, "secrets">, id: string, secret: string) {
  return { secret_sealed: app.secrets.seal(secret, placeOf(id)), secret_hint: `…${secret.slice(-4)}` };
}

function placeOf(id: string): string {
  return `agent_webhooks:${id}:secret`;
}

function requireTemplate(template: string | undefined): void {
  const why = template === undefined ? undefined : whyNotTemplate(template);
  if (why !== undefined) throw invalidField(["input_template"], why);
}

async function record(
  tx: Db,
  actor: Actor,
  agent: AgentRecord,
  deed: string,
  { id, name }: WebhookRow,
  detail: object = {},
): Promise<void> {
  const target = { kind: "agent_webhook", id, label: name };
  await recordActivity(tx, actor, deed, target, agent.workspace_id, { agent: agent.name, ...detail });
}

/** Counts an agent's webhooks. */
export async function webhooksOf(db: Db, agentId: string): Promise<number> {
  return (await listWebhooks(db, agentId)).length;
}
