/**
 * Accepts a delivery to a webhook. The request must prove the secret that is valid when the run is committed. A single
 * transaction stores the run, the delivery's id and the day's count. A sender that got no response retries, and gets
 * the same run.
 */
import { createHash } from "node:crypto";
import { workerActor } from "#accounts/worker-actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { isNumbered } from "../agents/names.ts";
import { EndUserId } from "../end-users/id.ts";
import { agentNotFound } from "../errors.ts";
import { type NewRunIds, invoke } from "../runs/api/invoke.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { dayOf, secondsToNextDay } from "./day.ts";
import { toTemplateInput, type Delivery, deliveryIdOf } from "./template-input.ts";
import {
  dailyCapReached,
  endUserInvalid,
  inputEmpty,
  inputTooLarge,
  sessionKeyTooLong,
  signatureInvalid,
  webhookDisabled,
  webhookNotFound,
} from "./errors.ts";
import { isAuthentic } from "./signature.ts";
import {
  deleteDeliveriesBefore,
  findDelivery,
  findReceiving,
  insertDelivery,
  lockWebhook,
  type ReceivingWebhook,
  setCount,
  type WebhookRow,
} from "./store.ts";
import { type TemplateInput, renderTemplate, isComplete } from "./template.ts";
import { openSecret } from "./webhooks.ts";

type Needs = Pick<App, "db" | "secrets" | "clock">;

export interface DeliveryResult {
  run_id: string;
  session_id: string;
}

const inputMaxBytes = 64 * 1024;
const keyMaxBytes = 1024;

const rememberedMs = 24 * 3_600_000;

/** Thrown if a concurrent request committed the same delivery. */
class RepeatedDelivery extends Error {}

export async function getReceiving({ db }: Pick<App, "db">, id: string): Promise<ReceivingWebhook> {
  const webhook = await findReceiving(db, id);
  if (!webhook) throw webhookNotFound();
  return webhook;
}

/** Throws `signature_invalid` unless the request proves the secret. The error does not reveal which part mismatched. */
export function requireAuthentic(app: Needs, webhook: WebhookRow, { headers, body }: Delivery): void {
  if (!isAuthentic(headers, body, openSecret(app, webhook), app.clock.now())) throw signatureInvalid();
}

/**
 * Starts the run of a delivery, or returns the run of a repeated delivery. Callers must call `requireAuthentic` first.
 */
export async function receive(
  app: Needs,
  runs: RunExecutor,
  webhook: ReceivingWebhook,
  delivery: Delivery,
): Promise<DeliveryResult> {
  const now = app.clock.now();
  const known = await findKnown(app, webhook, delivery, now);
  if (!webhook.enabled) throw webhookDisabled();
  if (known) return known;
  requireRoom(webhook, now);
  const told = renderInputs(app, webhook, delivery, now);
  const { workspace_id: workspaceId, worker_id: workerId, agent_name: label } = webhook;
  const actor = await workerActor(app.db, { workspaceId, workerId, label }, ["agents:invoke"]);
  if (!actor) throw agentNotFound();
  const received: DeliveryResult = { run_id: "", session_id: "" };
  try {
    await invoke(
      app,
      runs,
      actor,
      webhook.agent_id,
      {
        input: told.input,
        end_user_id: told.endUserId,
        qualifier: webhook.qualifier,
        upgrade: isNumbered(webhook.qualifier),
        wait_s: 0,
        stream: false,
      },
      {
        type: "webhook",
        id: webhook.id,
        session: told.session,
        within: async (tx, run) => {
          await commitDelivery(app, tx, webhook, delivery, run);
          Object.assign(received, { run_id: run.id, session_id: run.session_id });
          await passKillPoint("agent.webhook.commits");
        },
      },
    );
  } catch (error) {
    const first = error instanceof RepeatedDelivery && (await findKnown(app, webhook, delivery, now));
    if (first) return first;
    throw error;
  }
  await passKillPoint("agent.webhook.committed");
  return received;
}

/** Deletes old delivery ids. Senders may then use these ids again. */
export function pruneDeliveries(db: Db, now: Date): Promise<void> {
  return deleteDeliveriesBefore(db, new Date(now.getTime() - rememberedMs));
}

/** Commits a delivery. Checks the webhook's current row, which may have changed since the request arrived. */
async function commitDelivery(
  { clock }: Needs,
  tx: Db,
  webhook: WebhookRow,
  { headers }: Delivery,
  run: NewRunIds,
): Promise<void> {
  const row = await lockWebhook(tx, webhook.id);
  // The request may have waited past midnight, so it counts towards the new day.
  const now = clock.now();
  if (!row) throw webhookNotFound();
  if (!row.secret_sealed.equals(webhook.secret_sealed)) throw signatureInvalid();
  if (!row.enabled) throw webhookDisabled();
  const id = deliveryIdOf(headers);
  if (id !== undefined) {
    const seen = { webhook_id: row.id, delivery: hashOf(id), run_id: run.id, session_id: run.session_id };
    if (!(await insertDelivery(tx, { ...seen, received_at: now }, longAgo(now))))
      throw new RepeatedDelivery();
  }
  await setCount(tx, row.id, dayOf(now), requireRoom(row, now) + 1);
}

/** Returns the number of runs of the current day. Throws if the day's cap is reached. */
function requireRoom({ daily_cap, counted_since, runs_counted }: WebhookRow, now: Date): number {
  const used = counted_since.getTime() === dayOf(now).getTime() ? runs_counted : 0;
  if (daily_cap !== null && used >= daily_cap) throw dailyCapReached(daily_cap, secondsToNextDay(now));
  return used;
}

async function findKnown(
  { db }: Needs,
  webhook: WebhookRow,
  { headers }: Delivery,
  now: Date,
): Promise<DeliveryResult | undefined> {
  const id = deliveryIdOf(headers);
  const row = id === undefined ? undefined : await findDelivery(db, webhook.id, hashOf(id), longAgo(now));
  return row && { run_id: row.run_id, session_id: row.session_id };
}

/** Fills the webhook's templates from a delivery. */
function renderInputs(
  app: Needs,
  webhook: WebhookRow,
  delivery: Delivery,
  now: Date,
): { input: string; endUserId: string | undefined; session: string | undefined } {
  const secret = openSecret(app, webhook);
  const delivered = toTemplateInput(delivery, webhook, secret, now);
  // The secret is blanked in the input, so that the model does not see it if the body repeats it.
  const input = renderTemplate(webhook.input_template, delivered, { maxBytes: inputMaxBytes, secret });
  if (input === undefined) throw inputTooLarge(inputMaxBytes);
  if (input.trim() === "") throw inputEmpty();
  return {
    input,
    endUserId: endUserOf(webhook.end_user_id, delivered, secret),
    session: sessionOf(webhook.session, delivered, secret),
  };
}

function endUserOf(template: string | null, delivered: TemplateInput, secret: string): string | undefined {
  if (template === null) return undefined;
  const id = isComplete(template, delivered)
    ? renderTemplate(template, delivered, { maxBytes: keyMaxBytes, secret })
    : undefined;
  const { data, success } = EndUserId.safeParse(id);
  if (!success) throw endUserInvalid();
  return data;
}

/**
 * Returns the session key of a delivery. Returns undefined if the webhook has no key or the delivery has no value for
 * it. The delivery then gets its own session.
 */
function sessionOf(template: string | null, delivered: TemplateInput, secret: string): string | undefined {
  if (template === null) return undefined;
  if (!isComplete(template, delivered)) return undefined;
  const key = renderTemplate(template, delivered, { maxBytes: keyMaxBytes, secret });
  if (key === undefined) throw sessionKeyTooLong(keyMaxBytes);
  return key;
}

function longAgo(now: Date): Date {
  return new Date(now.getTime() - rememberedMs);
}

/** Returns the hash of a delivery's id, because a sender's id may have any length. */
function hashOf(id: string): Buffer {
  return createHash("sha256").update(id).digest();
}
