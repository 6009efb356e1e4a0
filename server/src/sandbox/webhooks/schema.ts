/** Request and response schemas of webhooks. */
import { z } from "zod";
import { eventNames } from "../events/names.ts";
import type { WebhookRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const WebhookParams = z.strictObject({
  id: z.string().max(64).describe("Id of the webhook: `whk_` and 20 letters and digits."),
});

export const WebhookCreate = z
  .strictObject({
    url: z
      .string()
      .max(2048)
      .refine(isWebAddress, { error: "must be an http or https URL without user name and password" })
      .describe("Publicly reachable URL that receives a POST request for each event."),
    event_types: z
      .array(z.enum(eventNames))
      .min(1)
      .max(50)
      .optional()
      .describe("Names of the events to deliver. Default: all events."),
  })
  .meta({ id: "WebhookCreate" });
export type WebhookCreate = z.output<typeof WebhookCreate>;

export const Webhook = z
  .object({
    id: z.string().describe("Id of the webhook: `whk_` and 20 letters and digits."),
    url: z.string().describe("URL that receives a POST request for each event."),
    event_types: z.array(z.enum(eventNames)).describe("Events that are delivered; all of them by default."),
    active: z.boolean().describe("False after 20 failed deliveries in a row, until it is enabled again."),
    consecutive_failures: z.int().describe("Failed deliveries in a row; each has had three attempts."),
    last_delivery_at: timestamp
      .nullable()
      .describe("Time of the last attempt, exact to a second. Null until the first one."),
    last_error: z
      .string()
      .nullable()
      .describe("Error of the last attempt. Null after a success, and after the webhook was enabled again."),
    created_at: timestamp.describe("Time of creation."),
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .optional()
      .describe(
        "Key of the signatures. Only in the response to the create; null if that response is repeated.",
      ),
  })
  .meta({ id: "Webhook" });
export type Webhook = z.output<typeof Webhook>;

export const WebhookList = z
  .object({
    items: z.array(Webhook).describe("All webhooks, newest first; at most 10 in each workspace."),
    next_cursor: z.string().nullable().describe("Always null: the list has one page."),
  })
  .meta({ id: "WebhookList" });

function isWebAddress(text: string): boolean {
  const url = URL.parse(text);
  return url !== null && /^https?:$/.test(url.protocol) && url.username === "" && url.password === "";
}

/** The only conversion from a row to JSON. */
export function toWebhook(row: WebhookRow): Webhook {
  return {
    id: row.id,
    url: row.url,
    event_types: row.event_types ?? [...eventNames],
    active: row.active,
    consecutive_failures: row.consecutive_failures,
    last_delivery_at: row.last_delivery_at?.toISOString() ?? null,
    last_error: row.last_error,
    created_at: row.created_at.toISOString(),
  };
}
