/** The wire of the feed. */
import { z } from "zod";
import { eventNames, eventOutcomes } from "./names.ts";
import type { EventRow } from "./store.ts";

const EventId = z.string().max(64).describe("The id of an event.");

export const EventQuery = z.strictObject({
  sandbox_id: z.string().max(64).optional(),
  event_type: z.array(z.enum(eventNames)).min(1).optional().describe("Repeated: any of them."),
  before: EventId.optional().describe("Only events before this one: the next page."),
  since: EventId.optional().describe("Only events after this one: what a poll has not seen."),
  limit: z.int().min(1).max(100).default(50),
});
export type EventQuery = z.output<typeof EventQuery>;

export const SandboxEvent = z
  .object({
    id: z.string().describe("Ids sort as events do."),
    event: z.enum(eventNames),
    sandbox_id: z.string().nullable(),
    at: z.iso.datetime(),
    outcome: z.enum(eventOutcomes),
    summary: z.string().nullable(),
    detail: z.record(z.string(), z.unknown()),
    actor: z.object({ kind: z.string(), id: z.string(), label: z.string() }),
  })
  .meta({ id: "SandboxEvent" });
export type SandboxEvent = z.output<typeof SandboxEvent>;

export const EventList = z
  .object({ items: z.array(SandboxEvent), next_before: z.string().nullable() })
  .meta({ id: "SandboxEventList" });
export type EventList = z.output<typeof EventList>;

/** Sixteen digits, so that ids compare as text as their positions do. */
export function toEventId(position: number): string {
  return `evt_${String(position).padStart(16, "0")}`;
}

/** The only way from a row to JSON. */
export function toEvent(row: EventRow): SandboxEvent {
  return {
    id: toEventId(row.position),
    event: row.event,
    sandbox_id: row.sandbox_id,
    at: row.at.toISOString(),
    outcome: row.outcome,
    summary: row.summary,
    detail: row.detail,
    actor: row.actor,
  };
}
