/** The wire of webhooks. */
import { z } from "zod";
import { eventNames } from "../events/names.ts";
import type { WebhookRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const WebhookParams = z.strictObject({ id: z.string().max(64) });

export const WebhookCreate = z
  .strictObject({
    url: z
      .string()
      .max(2048)
      .refine(isWebAddress, { error: "must be an http or https URL without user name and password" })
      .describe("Where deliveries are posted to; publicly reachable."),
    event_types: z.array(z.enum(eventNames)).min(1).max(50).optional().describe("All events where absent."),
  })
  .meta({ id: "WebhookCreate" });
export type WebhookCreate = z.output<typeof WebhookCreate>;

export const Webhook = z
  .object({
    id: z.string(),
    url: z.string(),
    event_types: z.array(z.enum(eventNames)),
    active: z.boolean().describe("False after 20 failed deliveries in a row, until it is enabled again."),
    consecutive_failures: z.int().describe("Failed deliveries in a row; each has had three attempts."),
    last_delivery_at: timestamp.nullable(),
    last_error: z.string().nullable(),
    created_at: timestamp,
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .optional()
      .describe("Only in the response to the create."),
  })
  .meta({ id: "Webhook" });
export type Webhook = z.output<typeof Webhook>;

export const WebhookList = z
  .object({ items: z.array(Webhook), next_cursor: z.string().nullable() })
  .meta({ id: "WebhookList" });

function isWebAddress(text: string): boolean {
  const url = URL.parse(text);
  return url !== null && /^https?:$/.test(url.protocol) && url.username === "" && url.password === "";
}

/** The only way from a row to JSON. */
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
