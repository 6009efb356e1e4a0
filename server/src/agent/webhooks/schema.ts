/** The wire of agents' webhooks. */
import { z } from "zod";
import type { App } from "#app.ts";
import { baseUrl } from "#config.ts";
import { AgentReference } from "../agents/schema.ts";
import type { WebhookRow } from "./store.ts";
import { dayOf } from "./day.ts";

const timestamp = z.iso.datetime();
const templateMaxBytes = 8 * 1024;
const keyTemplateMaxCharacters = 1024;
export const defaultTemplate = "{{body}}";

const Name = z.string().min(1).max(64);
const Template = z
  .string()
  .min(1)
  .refine((text) => Buffer.byteLength(text) <= templateMaxBytes, {
    error: `must be ${templateMaxBytes} bytes at most`,
  })
  .describe(
    "What the agent is told: a text in which `{{path}}` stands for what was delivered, from `body`, `headers`, `query`, `webhook` or `received_at` on.",
  );
const EndUserTemplate = z
  .string()
  .min(1)
  .max(keyTemplateMaxCharacters)
  .describe(
    "End user of the runs: an id, or a template such as `{{body.user.id}}`. A delivery for which the template yields no valid id is refused with `end_user_invalid`.",
  );
const SessionTemplate = z
  .string()
  .min(1)
  .max(keyTemplateMaxCharacters)
  .describe(
    "Key of the session, such as `{{body.thread}}`. Deliveries with the same key and end user share a live session, one run after the other. A delivery without the value gets its own session.",
  );
const Qualifier = z
  .string()
  .min(1)
  .max(64)
  .describe(
    "Version of new sessions: an alias, a number, or `latest`. Default `prod`. A number also moves sessions that exist.",
  );
const DailyCap = z
  .int()
  .min(1)
  .max(1_000_000)
  .nullable()
  .describe("Runs in a day, which begins at 00:00 UTC; null for no cap.");

export const WebhookParams = z.strictObject({ agent: AgentReference, webhook_id: z.string().max(64) });
export const ReceiveParams = z.strictObject({ webhook_id: z.string().max(64) });
export const ReceiveQuery = z.looseObject({});

export const WebhookCreate = z
  .strictObject({
    name: Name,
    input_template: Template.optional(),
    end_user_id: EndUserTemplate.nullable().optional(),
    session: SessionTemplate.nullable().optional(),
    qualifier: Qualifier.nullable().optional(),
    daily_cap: DailyCap.optional(),
  })
  .meta({ id: "AgentWebhookCreate" });
export type WebhookCreate = z.output<typeof WebhookCreate>;

export const WebhookUpdate = z
  .strictObject({
    name: Name.optional(),
    input_template: Template.nullable().optional().describe("Null resets it to `{{body}}`."),
    end_user_id: EndUserTemplate.nullable().optional(),
    session: SessionTemplate.nullable().optional(),
    qualifier: Qualifier.nullable().optional().describe("Null resets it to `prod`."),
    daily_cap: DailyCap.optional(),
    enabled: z.boolean().optional().describe("While it is false, deliveries get `webhook_disabled`."),
  })
  .meta({ id: "AgentWebhookUpdate" });
export type WebhookUpdate = z.output<typeof WebhookUpdate>;

const webhook = {
  id: z.string(),
  name: z.string(),
  url: z.string().describe("Where to deliver."),
  secret_hint: z.string().describe("The end of the secret."),
  input_template: z.string(),
  end_user_id: z.string().nullable(),
  session: z.string().nullable(),
  qualifier: z.string(),
  daily_cap: z.int().nullable(),
  enabled: z.boolean(),
  runs_today: z.int().describe("Since 00:00 UTC."),
  created_at: timestamp,
};
export const Webhook = z.object(webhook).meta({ id: "AgentWebhook" });
export type Webhook = z.output<typeof Webhook>;
export const WebhookList = z.object({ items: z.array(Webhook) }).meta({ id: "AgentWebhookList" });

export const WebhookWithSecret = z
  .object({
    ...webhook,
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .describe(
        "In this answer and in no other. The whole text keys the plain signatures; the bytes behind `whsec_` key those of Standard Webhooks.",
      ),
  })
  .meta({ id: "AgentWebhookWithSecret" });
export type WebhookWithSecret = z.output<typeof WebhookWithSecret>;

export const Received = z
  .object({ run_id: z.string(), session_id: z.string() })
  .meta({ id: "AgentWebhookReceived" });

/** Fields of the record that a PATCH accepts and ignores. */
export const webhookReadOnlyFields = Object.keys(webhook).filter((field) => !(field in WebhookUpdate.shape));

/** The only way from a row to JSON. */
export function toWebhook({ config, clock }: Pick<App, "config" | "clock">, row: WebhookRow): Webhook {
  const isToday = row.counted_since.getTime() === dayOf(clock.now()).getTime();
  return {
    id: row.id,
    name: row.name,
    url: `${config.publicUrl ?? baseUrl(config)}/v1/hooks/agents/${row.id}`,
    secret_hint: row.secret_hint,
    input_template: row.input_template,
    end_user_id: row.end_user_id,
    session: row.session,
    qualifier: row.qualifier,
    daily_cap: row.daily_cap,
    enabled: row.enabled,
    runs_today: isToday ? row.runs_counted : 0,
    created_at: row.created_at.toISOString(),
  };
}
