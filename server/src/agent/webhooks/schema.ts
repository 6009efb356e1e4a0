/** Wire format of agents' webhooks. */
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

const Name = z.string().min(1).max(64).describe("Display name, for example `orders`.");
const Template = z
  .string()
  .min(1)
  .refine((text) => Buffer.byteLength(text) <= templateMaxBytes, {
    error: `must be at most ${templateMaxBytes} bytes`,
  })
  .describe(
    "Template of the message for the agent, at most 8 KiB. Each `{{path}}` is replaced by a value of the delivery, for example `{{body.issue.title}}`. A path begins with `body`, `headers`, `query`, `webhook` or `received_at`. Default `{{body}}`.",
  );
const EndUserTemplate = z
  .string()
  .min(1)
  .max(keyTemplateMaxCharacters)
  .nullable()
  .describe(
    "End user of the runs: an id, or a template such as `{{body.user.id}}`. A delivery without a valid id is refused with 400 `end_user_invalid`. Null for none.",
  );
const SessionTemplate = z
  .string()
  .min(1)
  .max(keyTemplateMaxCharacters)
  .nullable()
  .describe(
    "Key of the session, such as `{{body.thread}}`. Deliveries with the same key and end user share a live session, one run after the other. A delivery without the value gets its own session. Null gives each delivery its own.",
  );
const Qualifier = z
  .string()
  .min(1)
  .max(64)
  .nullable()
  .describe(
    "Version of new sessions: an alias, a number, or `latest`. A number also moves an existing session to that version. Null for the default `prod`.",
  );
const DailyCap = z
  .int()
  .min(1)
  .max(1_000_000)
  .nullable()
  .describe("Maximum number of runs in a UTC day. Null for no cap.");

const webhookId = z.string().max(64).describe("Id of the webhook: `agw_…`.");

export const WebhookParams = z.strictObject({ agent: AgentReference, webhook_id: webhookId });
export const ReceiveParams = z.strictObject({ webhook_id: webhookId });
export const ReceiveQuery = z.looseObject({});

export const WebhookCreate = z
  .strictObject({
    name: Name,
    input_template: Template.optional(),
    end_user_id: EndUserTemplate.optional(),
    session: SessionTemplate.optional(),
    qualifier: Qualifier.optional(),
    daily_cap: DailyCap.optional(),
  })
  .meta({ id: "AgentWebhookCreate" });
export type WebhookCreate = z.output<typeof WebhookCreate>;

export const WebhookUpdate = z
  .strictObject({
    name: Name.optional(),
    input_template: Template.nullable()
      .optional()
      .describe("New template of the message for the agent. Null resets it to `{{body}}`."),
    end_user_id: EndUserTemplate.optional(),
    session: SessionTemplate.optional(),
    qualifier: Qualifier.optional(),
    daily_cap: DailyCap.optional(),
    enabled: z
      .boolean()
      .optional()
      .describe("False refuses deliveries with 409 `webhook_disabled`; true accepts them again."),
  })
  .meta({ id: "AgentWebhookUpdate" });
export type WebhookUpdate = z.output<typeof WebhookUpdate>;

const webhook = {
  id: z.string().describe("Id of the webhook: `agw_…`."),
  name: z.string().describe("Display name, for example `orders`."),
  url: z.string().describe("URL that accepts deliveries by POST."),
  secret_hint: z.string().describe("Hint of the secret: its last four characters, as in `…6789`."),
  input_template: z
    .string()
    .describe("Template of the message that the agent gets. `{{body}}` if none was set."),
  end_user_id: z
    .string()
    .nullable()
    .describe("Id or template of the end user of the runs. Null if there is none."),
  session: z
    .string()
    .nullable()
    .describe("Template of the session's key. Null if each delivery gets its own session."),
  qualifier: z
    .string()
    .describe("Version of new sessions: an alias, a number, or `latest`. `prod` if none was set."),
  daily_cap: z.int().nullable().describe("Maximum number of runs in a UTC day. Null for no cap."),
  enabled: z.boolean().describe("False if the webhook refuses deliveries with `webhook_disabled`."),
  runs_today: z.int().describe("Number of runs since 00:00 UTC."),
  created_at: timestamp.describe("Time when the webhook was created."),
};
export const Webhook = z.object(webhook).meta({ id: "AgentWebhook" });
export type Webhook = z.output<typeof Webhook>;
export const WebhookList = z
  .object({ items: z.array(Webhook).describe("Webhooks of the agent, newest first.") })
  .meta({ id: "AgentWebhookList" });

export const WebhookWithSecret = z
  .object({
    ...webhook,
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .describe(
        "Secret of the webhook, shown only once; null in a replayed response. `sha256=` signatures use the whole text as key. Standard Webhooks signatures use the bytes of the base64 text after `whsec_`.",
      ),
  })
  .meta({ id: "AgentWebhookWithSecret" });
export type WebhookWithSecret = z.output<typeof WebhookWithSecret>;

export const Received = z
  .object({
    run_id: z.string().describe("Id of the run: `run_…`. A repeated delivery gets the first run."),
    session_id: z.string().describe("Id of the run's session: `ses_…`."),
  })
  .meta({ id: "AgentWebhookReceived" });

/** Fields of the record that a PATCH accepts and ignores. */
export const webhookReadOnlyFields = Object.keys(webhook).filter((field) => !(field in WebhookUpdate.shape));

/** Converts a row to the JSON of every response. */
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
