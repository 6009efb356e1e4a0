/**
 * Events of sandboxes. The transaction of a change also writes its event, so that no change exists without its event,
 * and no event without its change. The feed returns events newest first, or from a reader's position; webhooks deliver
 * them. A reader who polls with `since` misses no event, in any order of commits: an event gets its position after its
 * commit, at the next read.
 */
import type { Actor } from "#accounts/actor.ts";
import type { Db } from "#schema.ts";
import { queueDeliveries } from "../webhooks/queue.ts";
import type { EventName, EventOutcome } from "./names.ts";
import { insertEvent } from "./store.ts";

export interface Fact {
  workspaceId: string;
  event: EventName;
  /** Null if the event has no sandbox. */
  sandboxId: string | null;
  /** Fields beside `sandbox_id` in a delivery, for an event without a sandbox. */
  subject?: Record<string, unknown>;
  at: Date;
  outcome: EventOutcome;
  /** Summary in one sentence. */
  summary: string;
  detail: Record<string, unknown>;
  actor: Actor;
}

/**
 * Records an event. Call this function last in a transaction, after the change, so that events of one sandbox have the
 * order of its changes.
 */
export async function recordEvent(tx: Db, fact: Fact): Promise<void> {
  const { kind, id, label } = fact.actor;
  await insertEvent(tx, {
    workspace_id: fact.workspaceId,
    event: fact.event,
    sandbox_id: fact.sandboxId,
    at: fact.at,
    outcome: fact.outcome,
    summary: fact.summary,
    detail: JSON.stringify(fact.detail),
    actor: JSON.stringify({ kind, id, label }),
  });
  await queueDeliveries(tx, fact);
}

/** Returns `by` for an event's detail: `caller` for a user or a token, `platform` for the platform itself. */
export function byWhom(actor: Actor): { by: "caller" | "platform" } {
  return { by: actor.kind === "system" ? "platform" : "caller" };
}
