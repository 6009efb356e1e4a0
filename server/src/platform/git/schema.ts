import { z } from "zod";
import type { App } from "#app.ts";
import { hookUrl } from "../projects/schema.ts";
import { providers } from "./forges.ts";
import type { WebhookView } from "./webhook.ts";

export const ProjectParams = z.object({ project_id: z.guid() });
export const HookParams = z.object({ hook_id: z.string().max(64) });

export const ToggleQuery = z.object({
  enable: z.boolean().default(true).describe("Whether a push deploys."),
  rotate_secret: z
    .boolean()
    .default(false)
    .describe("An extension: makes a new secret and answers it, this once. The old one is void at once."),
});

export const Webhook = z
  .object({
    provider: z.enum(providers),
    url: z.string().describe("Address for the forge to call. A push to a hosted repository needs no call."),
    secret_hint: z.string(),
    auto_deploy: z.boolean(),
    last_delivery: z
      .object({
        at: z.iso.datetime(),
        event: z.string().nullable(),
        status: z
          .int()
          .describe("Status of the response to the forge. 202 for a push to a hosted repository."),
        detail: z.string(),
      })
      .nullable(),
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .optional()
      .describe("New secret; absent when the old one was kept."),
  })
  .meta({ id: "Webhook" });

export const DeployKey = z
  .object({
    public_key: z
      .string()
      .nullable()
      .describe("One line for the forge's deploy keys; null where the repository is not fetched by ssh."),
  })
  .meta({ id: "DeployKey" });

export const HookResult = z
  .object({
    result: z.enum(["queued", "ignored"]),
    detail: z.string(),
    deployments: z.array(z.guid()),
  })
  .meta({ id: "GitHookResult" });

export function toWebhook(
  app: Pick<App, "config">,
  { project, provider, secretHint, secret }: WebhookView,
): z.output<typeof Webhook> {
  return {
    provider,
    url: hookUrl(app, project.hook_id),
    secret_hint: secretHint,
    auto_deploy: project.auto_deploy,
    last_delivery: project.hook_last_delivery,
    ...(secret === undefined ? {} : { secret }),
  };
}
