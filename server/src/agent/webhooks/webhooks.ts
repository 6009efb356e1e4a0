/**
 * Webhooks of agents: URLs that start a run for each delivered event. This folder owns webhooks and their secrets. The
 * folder promises:
 * - Only a sender with the secret starts a run.
 * - A repeated delivery is one run.
 * - A day has no more runs than its cap.
 * - A secret is returned once, to the creator of the webhook.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { type AgentRecord, getAgent, lockWritableAgent } from "../agents/agents.ts";
import { firstAlias } from "../agents/limits.ts";
import { EndUserId } from "../end-users/id.ts";
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
  lockWebhook,
  type WebhookRow,
} from "./store.ts";
import { hasPlaceholders, findTemplateFault } from "./template.ts";

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

/** Creates a webhook. Only this response contains the webhook's secret. */
export async function create(
  app: Needs,
  actor: Actor,
  reference: string,
  input: WebhookCreate,
): Promise<WebhookWithSecret> {
  requireTemplates(input);
  const id = newId("agw_");
  const secret = newWebhookSecret();
  const row = await app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const qualifier = input.qualifier ?? firstAlias;
    await requireServedHeld(tx, actor, agent, { qualifier, isInBody: qualifier !== firstAlias });
    if ((await lockAndCount(tx, agent.id)) >= webhooksMax) throw webhookLimitReached(webhooksMax);
    const now = app.clock.now();
    const made = await insertWebhook(tx, {
      id,
      workspace_id: agent.workspace_id,
      agent_id: agent.id,
      name: input.name,
      ...sealSecret(app, id, secret),
      input_template: input.input_template ?? defaultTemplate,
      end_user_id: input.end_user_id ?? null,
      session: input.session ?? null,
      qualifier,
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
  requireTemplates(input);
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    // A caller needs no further scope to disable a webhook.
    const known = await lockWebhook(tx, id);
    if (known?.agent_id !== agent.id) throw webhookNotFound();
    const qualifier = input.qualifier === undefined ? known.qualifier : (input.qualifier ?? firstAlias);
    const isInBody = qualifier !== known.qualifier;
    if (input.enabled !== false || isInBody)
      await requireServedHeld(tx, actor, agent, { qualifier, isInBody });
    const row = await changeWebhook(tx, agent.id, id, {
      ...(input.name === undefined ? {} : { name: input.name }),
      ...(input.input_template === undefined
        ? {}
        : { input_template: input.input_template ?? defaultTemplate }),
      ...(input.end_user_id === undefined ? {} : { end_user_id: input.end_user_id }),
      ...(input.session === undefined ? {} : { session: input.session }),
      qualifier,
      ...(input.daily_cap === undefined ? {} : { daily_cap: input.daily_cap }),
      ...(input.enabled === undefined ? {} : { enabled: input.enabled }),
    });
    if (!row) throw webhookNotFound();
    await record(tx, actor, agent, "agent_webhook.updated", row, { fields: Object.keys(input) });
    return toWebhook(app, row);
  });
}

/** Replaces the secret. From then on, signatures with the previous secret are refused. */
export async function rotate(
  app: Needs,
  actor: Actor,
  reference: string,
  id: string,
): Promise<WebhookWithSecret> {
  const secret = newWebhookSecret();
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const row = await changeWebhook(tx, agent.id, id, sealSecret(app, id, secret));
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

function sealSecret(app: Pick<App, "secrets">, id: string, secret: string) {
  return { secret_sealed: app.secrets.seal(secret, placeOf(id)), secret_hint: `…${secret.slice(-4)}` };
}

function placeOf(id: string): string {
  return `agent_webhooks:${id}:secret`;
}

function requireTemplates(input: WebhookUpdate): void {
  for (const name of ["input_template", "end_user_id", "session"] as const) {
    const why = findTemplateFault(input[name] ?? "");
    if (why !== undefined) throw invalidField([name], why);
  }
  const fixed = input.end_user_id;
  if (fixed === undefined || fixed === null || hasPlaceholders(fixed)) return;
  const { error } = EndUserId.safeParse(fixed);
  if (error) throw invalidField(["end_user_id"], error.issues[0]!.message);
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

/** Counts an agent's webhooks that run one of these qualifiers. */
export async function countWebhooks(db: Db, agentId: string, qualifiers: readonly string[]): Promise<number> {
  return (await listWebhooks(db, agentId)).filter(({ qualifier }) => qualifiers.includes(qualifier)).length;
}
