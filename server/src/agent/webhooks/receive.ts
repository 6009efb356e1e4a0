/**
 * Somebody delivers to a webhook. Believed is only who knows its secret, as it is when the run is committed. The run,
 * the delivery's id and the day's count are one transaction: a sender that heard no answer sends again, and is told of
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
import { type BegunRun, invoke } from "../runs/api/invoke.ts";
import type { AgentRuns } from "../runs/engine/run-executor.ts";
import { dayOf, secondsToNextDay } from "./day.ts";
import { deliveredOf, type Delivery, deliveryIdOf } from "./delivered.ts";
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
  dropDeliveries,
  findDelivery,
  findReceiving,
  insertDelivery,
  lockWebhook,
  type ReceivingWebhook,
  setCount,
  type WebhookRow,
} from "./store.ts";
import { type Delivered, fill, isComplete } from "./template.ts";
import { openSecret } from "./webhooks.ts";

type Needs = Pick<App, "db" | "secrets" | "clock">;

export interface Received {
  run_id: string;
  session_id: string;
}

const inputMaxBytes = 64 * 1024;
const keyMaxBytes = 1024;

const rememberedMs = 24 * 3_600_000;

/** It was delivered while this one was. */
class Repeated extends Error {}

export async function getReceiving({ db }: Pick<App, "db">, id: string): Promise<ReceivingWebhook> {
  const webhook = await findReceiving(db, id);
  if (!webhook) throw webhookNotFound();
  return webhook;
}

/** Throws `signature_invalid`, and no word of what did not fit. */
export function requireAuthentic(app: Needs, webhook: WebhookRow, { headers, body }: Delivery): void {
  if (!isAuthentic(headers, body, openSecret(app, webhook), app.clock.now())) throw signatureInvalid();
}

/** For who was asked for `requireAuthentic`. */
export async function receive(
  app: Needs,
  runs: AgentRuns,
  webhook: ReceivingWebhook,
  delivery: Delivery,
): Promise<Received> {
  const now = app.clock.now();
  const known = await findKnown(app, webhook, delivery, now);
  if (!webhook.enabled) throw webhookDisabled();
  if (known) return known;
  requireRoom(webhook, now);
  const told = toldOf(app, webhook, delivery, now);
  const { workspace_id: workspaceId, worker_id: workerId, agent_name: label } = webhook;
  const actor = await workerActor(app.db, { workspaceId, workerId, label }, ["agents:invoke"]);
  if (!actor) throw agentNotFound();
  const received: Received = { run_id: "", session_id: "" };
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
          await note(app, tx, webhook, delivery, run);
          Object.assign(received, { run_id: run.id, session_id: run.session_id });
          await passKillPoint("agent.webhook.commits");
        },
      },
    );
  } catch (error) {
    const first = error instanceof Repeated && (await findKnown(app, webhook, delivery, now));
    if (first) return first;
    throw error;
  }
  await passKillPoint("agent.webhook.committed");
  return received;
}

/** Ids that were sent long enough ago may come again. */
export function forgetDeliveries(db: Db, now: Date): Promise<void> {
  return dropDeliveries(db, new Date(now.getTime() - rememberedMs));
}

/** What the webhook is by now, and not as it was when the delivery came, decides. */
async function note(
  { clock }: Needs,
  tx: Db,
  webhook: WebhookRow,
  { headers }: Delivery,
  run: BegunRun,
): Promise<void> {
  const row = await lockWebhook(tx, webhook.id);
  // It may have waited over midnight: whoever was let in first has counted in the new day.
  const now = clock.now();
  if (!row) throw webhookNotFound();
  if (!row.secret_sealed.equals(webhook.secret_sealed)) throw signatureInvalid();
  if (!row.enabled) throw webhookDisabled();
  const id = deliveryIdOf(headers);
  if (id !== undefined) {
    const seen = { webhook_id: row.id, delivery: hashOf(id), run_id: run.id, session_id: run.session_id };
    if (!(await insertDelivery(tx, { ...seen, received_at: now }, longAgo(now)))) throw new Repeated();
  }
  await setCount(tx, row.id, dayOf(now), requireRoom(row, now) + 1);
}

/** How many runs the day has had. */
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
): Promise<Received | undefined> {
  const id = deliveryIdOf(headers);
  const row = id === undefined ? undefined : await findDelivery(db, webhook.id, hashOf(id), longAgo(now));
  return row && { run_id: row.run_id, session_id: row.session_id };
}

/** Fills the webhook's templates from a delivery. */
function toldOf(
  app: Needs,
  webhook: WebhookRow,
  delivery: Delivery,
  now: Date,
): { input: string; endUserId: string | undefined; session: string | undefined } {
  const secret = openSecret(app, webhook);
  const delivered = deliveredOf(delivery, webhook, secret, now);
  // A sender that repeats the secret in the body tells it to no model.
  const input = fill(webhook.input_template, delivered, { maxBytes: inputMaxBytes, secret });
  if (input === undefined) throw inputTooLarge(inputMaxBytes);
  if (input.trim() === "") throw inputEmpty();
  return {
    input,
    endUserId: endUserOf(webhook.end_user_id, delivered, secret),
    session: sessionOf(webhook.session, delivered, secret),
  };
}

function endUserOf(template: string | null, delivered: Delivered, secret: string): string | undefined {
  if (template === null) return undefined;
  const id = isComplete(template, delivered)
    ? fill(template, delivered, { maxBytes: keyMaxBytes, secret })
    : undefined;
  const { data, success } = EndUserId.safeParse(id);
  if (!success) throw endUserInvalid();
  return data;
}

/** Undefined for a session of its own: the webhook has no key, or the delivery has no value for it. */
function sessionOf(template: string | null, delivered: Delivered, secret: string): string | undefined {
  if (template === null) return undefined;
  if (!isComplete(template, delivered)) return undefined;
  const key = fill(template, delivered, { maxBytes: keyMaxBytes, secret });
  if (key === undefined) throw sessionKeyTooLong(keyMaxBytes);
  return key;
}

function longAgo(now: Date): Date {
  return new Date(now.getTime() - rememberedMs);
}

/** A sender's id may be of any length. */
function hashOf(id: string): Buffer {
  return createHash("sha256").update(id).digest();
}
