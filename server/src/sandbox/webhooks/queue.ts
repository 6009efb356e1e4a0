/**
 * Queues the deliveries of an event in the event's own transaction, so that either both commit or neither does.
 */
import { randomUUID } from "node:crypto";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import type { EventName, EventOutcome } from "../events/names.ts";
import { findListeners, insertDelivery } from "./store.ts";

/** Payload of the task: `{ webhook: id }`. */
export const deliverTask = "sandbox.webhooks";

export interface Deliverable {
  workspaceId: string;
  event: EventName;
  sandboxId: string | null;
  subject?: Record<string, unknown>;
  at: Date;
  outcome: EventOutcome;
  summary: string;
  detail: Record<string, unknown>;
}

export async function queueDeliveries(tx: Db, event: Deliverable): Promise<void> {
  for (const webhook of await findListeners(tx, event.workspaceId, event.event)) {
    const id = randomUUID();
    const body = JSON.stringify({
      event: event.event,
      delivery_id: id,
      timestamp: event.at.toISOString(),
      data: {
        ...event.subject,
        sandbox_id: event.sandboxId,
        outcome: event.outcome,
        summary: event.summary,
        detail: event.detail,
      },
    });
    await insertDelivery(tx, {
      id,
      webhook_id: webhook,
      lane: event.sandboxId ?? id,
      event: event.event,
      body,
      due_at: event.at,
    });
    // The job has no key, because two transactions that add a job with the same key wait for each other.
    await addJob(tx, deliverTask, { webhook });
  }
}
