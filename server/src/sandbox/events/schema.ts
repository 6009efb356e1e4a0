/** Response schemas of the feed. */
import { z } from "zod";
import { sandboxIdParameter } from "../fields.ts";
import { eventNames, eventOutcomes } from "./names.ts";
import type { EventRow } from "./store.ts";

const EventId = z.string().max(64).describe("Id of an event.");

export const EventQuery = z.strictObject({
  sandbox_id: sandboxIdParameter
    .optional()
    .describe(
      "Id of a sandbox, to get its events only. Default: events of all sandboxes, templates and volumes.",
    ),
  event_type: z
    .array(z.enum(eventNames))
    .min(1)
    .optional()
    .describe("Name of the events to include. Repeat the parameter for several. Default: all events."),
  before: EventId.optional().describe("Id of an event; only older events are returned."),
  since: EventId.optional().describe("Id of an event; only newer events are returned."),
  limit: z.int().min(1).max(100).default(50).describe("Maximum of events on a page, 1 to 100. Default: 50."),
});
export type EventQuery = z.output<typeof EventQuery>;

export const SandboxEvent = z
  .object({
    id: z.string().describe("Id of the event. Ids sort in the order of the events."),
    event: z.enum(eventNames).describe("Name of the event, such as `sandbox.created`."),
    sandbox_id: z
      .string()
      .nullable()
      .describe("Id of the sandbox. Null for an event of a template or a volume."),
    at: z.iso.datetime().describe("Time of the event."),
    outcome: z
      .enum(eventOutcomes)
      .describe("`failed` if something went wrong, such as a build or a start; otherwise `ok`."),
    summary: z.string().nullable().describe("The event in one sentence for people. Null if there is none."),
    detail: z
      .record(z.string(), z.unknown())
      .describe(
        'Further facts, which differ from event to event. Example: {"by": "caller", "reason": "requested"}.',
      ),
    actor: z
      .object({
        kind: z
          .string()
          .describe("Kind of originator: `user`, `api_token`, `worker`, or `system` for the server."),
        id: z.string().describe("Id of the user, token or worker. Always `system` for the server."),
        label: z.string().describe("Name of the originator at the time of the event."),
      })
      .describe("Originator of the event."),
  })
  .meta({ id: "SandboxEvent" });
export type SandboxEvent = z.output<typeof SandboxEvent>;

export const EventList = z
  .object({
    items: z.array(SandboxEvent).describe("Events of the page, newest first."),
    next_before: z.string().nullable().describe("`before` of the next page. Null on the last page."),
  })
  .meta({ id: "SandboxEventList" });
export type EventList = z.output<typeof EventList>;

/** Sixteen digits, so that ids sort as text in the order of their positions. */
export function toEventId(position: number): string {
  return `evt_${String(position).padStart(16, "0")}`;
}

/** The only conversion from a row to JSON. */
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
