/**
 * Facts: what happened to a sandbox, written in the transaction of the change, so that neither is there without the
 * other. The feed reads them, newest first or from where its reader left off; webhooks carry them out. This folder
 * promises that a reader who polls with `since` misses none, whatever the order in which transactions end: an event
 * gets its place in the feed after its commit, when somebody looks, and what is committed later gets a later one.
 */
import type { Actor } from "#accounts/actor.ts";
import type { Db } from "#schema.ts";
import { queueDeliveries } from "../webhooks/queue.ts";
import type { EventName, EventOutcome } from "./names.ts";
import { insertEvent } from "./store.ts";

export interface Fact {
  workspaceId: string;
  event: EventName;
  /** Null where it is of no sandbox. */
  sandboxId: string | null;
  /** What it is of where that is no sandbox: fields that stand beside `sandbox_id` in a delivery. */
  subject?: Record<string, unknown>;
  at: Date;
  outcome: EventOutcome;
  /** One sentence for a person. */
  summary: string;
  detail: Record<string, unknown>;
  actor: Actor;
}

/** Comes last in a transaction, after the change: facts of one sandbox then follow one another as its changes do. */
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

/** `by` in an event's detail: a person and their tokens, or the server of itself. */
export function byWhom(actor: Actor): { by: "caller" | "platform" } {
  return { by: actor.kind === "system" ? "platform" : "caller" };
}
