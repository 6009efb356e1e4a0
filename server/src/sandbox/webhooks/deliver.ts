/**
 * Delivers to one webhook until nothing is due. Deliveries of one sandbox go in sequence, each until it succeeds or is
 * given up; those of different sandboxes go in parallel. A lease in the webhook's row lets only one process deliver at
 * a time. Other processes check again when the lease is over. The holder checks once more after the release, so that no
 * delivery is forgotten.
 */
import { createHmac, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { notify } from "#accounts/notifications/notifications.ts";
import type { News } from "#accounts/notifications/news.ts";
import { payerOf } from "#accounts/payers.ts";
import type { App } from "#app.ts";
import { FairJobs } from "#jobs/fair-jobs.ts";
import { addJob, hasJob } from "#jobs/jobs.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { attemptsApartMs, attemptsMax, failuresMax } from "./limits.ts";
import { deliverTask } from "./queue.ts";
import { DeliveryError, post } from "./send.ts";
import {
  deleteDeliveriesOf,
  deleteDelivery,
  type DeliveryRow,
  dueDeliveries,
  findLease,
  nextDue,
  nextOfLane,
  noteAttempt,
  noteFailure,
  noteSuccess,
  postpone,
  releaseLease,
  takeLease,
  type WebhookRow,
} from "./store.ts";
import { openSecret } from "./webhooks.ts";

type Needs = Pick<App, "db" | "secrets" | "config" | "clock" | "log">;

/**
 * Maximum of webhooks with deliveries at once. Deliveries mostly wait for receivers, and half of this server's workers
 * remain for other jobs.
 */
const webhooksAtOnce = 12;
const perPayer = 4;
/** Time after which a webhook's turn ends if other webhooks wait. */
const turnMs = 15_000;

/** Maximum of sandboxes whose deliveries to one webhook may be in flight at once. */
const atOnce = 16;
/**
 * Maximum of deliveries of one sandbox in sequence, before the sandbox that has waited longest is searched. The search
 * scans every waiting delivery before it.
 */
const inARowMax = 20;
/** Time of a lease: longer than an attempt, so that a lease renewed between attempts never expires. */
const leaseMs = 25_000;
/** Interval of renewals. A renewal with every delivery would make all deliveries wait for writes of this row. */
const renewEveryMs = 5_000;

/** Queue that serves the owners of webhooks in turn; one for each server. */
export type DeliveryTurns = FairJobs;
export const newDeliveryTurns = (): DeliveryTurns =>
  new FairJobs({ limit: webhooksAtOnce, perOwner: perPayer });

/** Runs the delivery job of one webhook when its turn comes. */
export async function deliverInTurn(
  app: Needs,
  turns: DeliveryTurns,
  id: string,
  signal: AbortSignal,
): Promise<void> {
  // The lease is read first, because every event adds a job, and a write would wait for the deliveries' writes.
  const lease = await findLease(app.db, id);
  if (!lease) return;
  if ((lease.until ?? new Date(0)) >= app.clock.now()) return comeBack(app, id);
  const key = laterKey(id);
  const deferJob = async () => {
    if (await hasJob(app.db, key)) return;
    await addJob(app.db, deliverTask, { webhook: id }, { key, runAt: later(app, leaseMs) });
  };
  const job = {
    owner: await payerOf(app.db, lease.workspaceId),
    id,
    work: (stops: AbortSignal) =>
      deliver(app, id, stops, () => turns.hasWaiting).catch(async (error: unknown) => {
        app.log.warn({ error, webhook: id }, "deliveries of a webhook failed; a later job retries them");
        await addJob(app.db, deliverTask, { webhook: id }, { key, runAt: later(app, attemptsApartMs) });
      }),
    defer: deferJob,
  };
  await turns.run(job, signal);
}

/** Delivers until nothing is due. Stops after `turnMs` if `othersWait` returns true. */
export async function deliver(
  app: Needs,
  id: string,
  signal: AbortSignal,
  othersWait: () => boolean = () => false,
): Promise<void> {
  const lease = randomUUID();
  const turn = () => takeLease(app.db, id, { lease, now: app.clock.now(), until: later(app, leaseMs) });
  const webhook = await turn();
  if (!webhook) return comeBack(app, id);
  const began = performance.now();
  const isOver = () => performance.now() - began > turnMs && othersWait();
  const untilRenewal = () => sleep(renewEveryMs, "renew" as const, { ref: false });
  let renewal = untilRenewal();
  const ours = new AbortController();
  const mayGoOn = AbortSignal.any([signal, ours.signal]);
  const underWay = new Map<string, Promise<void>>();
  try {
    if (!webhook.active) await deleteDeliveriesOf(app.db, id);
    while (!signal.aborted && !isOver()) {
      const due = await dueDeliveries(app.db, id, {
        now: app.clock.now(),
        exceptLanes: [...underWay.keys()],
        limit: atOnce - underWay.size,
      });
      for (const delivery of due) {
        const sent = carryLane(app, webhook, delivery, mayGoOn).finally(() => underWay.delete(delivery.lane));
        underWay.set(delivery.lane, sent);
      }
      if (underWay.size === 0) break;
      if ((await Promise.race([renewal, ...underWay.values()])) !== "renew") continue;
      if (!(await turn())) break;
      renewal = untilRenewal();
    }
  } finally {
    ours.abort();
    await Promise.allSettled(underWay.values());
    await releaseLease(app.db, id, lease);
    const next = await nextDue(app.db, id);
    if (next)
      await addJob(app.db, deliverTask, { webhook: id }, { key: `${deliverTask}:${id}:next`, runAt: next });
  }
}

/** Schedules a job for the end of another process's lease, in case that process dies. */
async function comeBack(app: Needs, id: string): Promise<void> {
  const lease = await findLease(app.db, id);
  const key = laterKey(id);
  if (!lease?.until || (await hasJob(app.db, key))) return;
  await addJob(app.db, deliverTask, { webhook: id }, { key, runAt: lease.until });
}

const laterKey = (id: string): string => `${deliverTask}:${id}:later`;

/** Sends the waiting deliveries of one sandbox in their order. */
async function carryLane(
  app: Needs,
  webhook: WebhookRow,
  first: DeliveryRow,
  mayGoOn: AbortSignal,
): Promise<void> {
  let delivery: DeliveryRow | undefined = first;
  for (let count = 0; delivery && count < inARowMax && !mayGoOn.aborted; count += 1) {
    await attempt(app, webhook, delivery);
    delivery = await nextOfLane(app.db, delivery, app.clock.now());
  }
}

async function attempt(app: Needs, webhook: WebhookRow, delivery: DeliveryRow): Promise<void> {
  const error = await send(app, webhook, delivery);
  const at = app.clock.now();
  // The webhook's row is always locked before the deliveries' rows, because disabling a webhook deletes all of its
  // deliveries.
  await app.db.transaction().execute(async (tx) => {
    if (error === undefined) {
      await noteSuccess(tx, webhook.id, at);
      await deleteDelivery(tx, delivery.seq);
    } else if (delivery.attempts + 1 < attemptsMax) {
      await noteAttempt(tx, webhook.id, at, error);
      await postpone(tx, delivery.seq, later(app, attemptsApartMs));
    } else {
      const noted = await noteFailure(tx, webhook.id, { at, error, most: failuresMax });
      // Attempts in flight when the webhook was disabled still count.
      if (noted?.active === false && noted.consecutive_failures === failuresMax)
        await notify(tx, disabledNews(webhook, error));
      if (noted?.active === false) await deleteDeliveriesOf(tx, webhook.id);
      else await deleteDelivery(tx, delivery.seq);
    }
  });
}

function disabledNews({ id, url, workspace_id: workspaceId }: WebhookRow, error: string): News {
  return {
    workspaceId,
    kind: "webhook_disabled",
    title: `The webhook ${url} is disabled`,
    body: `${failuresMax} deliveries in a row failed. The last error: ${error} Enable the webhook when its receiver works.`,
    target: { kind: "sandbox_webhook", id, label: url },
  };
}

/** Sends a delivery. Returns undefined after a success, else the reason of the failure for the owner. */
async function send(app: Needs, webhook: WebhookRow, delivery: DeliveryRow): Promise<string | undefined> {
  const body = Buffer.from(delivery.body);
  const signature = createHmac("sha256", openSecret(app, webhook)).update(body).digest("hex");
  try {
    await post(new URL(webhook.url), parseOpenedHosts(app.config.allowPrivateHosts), {
      headers: {
        "content-type": "application/json",
        "user-agent": "Kontor-Webhooks/1",
        "x-service-event": delivery.event,
        "x-service-delivery": delivery.id,
        "x-service-signature": `sha256=${signature}`,
      },
      body,
      owner: webhook.workspace_id,
    });
    return undefined;
  } catch (error) {
    if (error instanceof DeliveryError) return error.message;
    throw error;
  }
}

function later(app: Needs, ms: number): Date {
  return new Date(app.clock.now().getTime() + ms);
}
