/** Reads events: newest first, or from the reader's position. */
import type { Actor } from "#accounts/actor.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { invalidField } from "../sandboxes/errors.ts";
import { type EventList, type EventQuery, toEvent, toEventId } from "./schema.ts";
import { deleteEventsBefore, listEvents, numberEvents } from "./store.ts";

export async function feed(app: Pick<App, "db">, actor: Actor, query: EventQuery): Promise<EventList> {
  const [before, since] = [positionOf("before", query.before), positionOf("since", query.since)];
  await numberEvents(app.db);
  const rows = await listEvents(app.db, workspaceIds(actor), {
    sandboxId: query.sandbox_id,
    events: query.event_type,
    before,
    since,
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  return {
    items: page.map(toEvent),
    next_before: rows.length > query.limit && last ? toEventId(last.position) : null,
  };
}

/** Retention of events, equal to the retention of a terminated sandbox's record. */
const keepEventsMs = 30 * 24 * 3_600_000;

export function forgetEvents(app: Pick<App, "db" | "clock">): Promise<void> {
  return deleteEventsBefore(app.db, new Date(app.clock.now().getTime() - keepEventsMs));
}

function positionOf(field: string, id: string | undefined): number | undefined {
  if (id === undefined) return undefined;
  const [, digits] = /^evt_(\d{16})$/.exec(id) ?? [];
  if (digits === undefined || !Number.isSafeInteger(Number(digits))) {
    throw invalidField(field, "must be the id of an event.");
  }
  return Number(digits);
}
