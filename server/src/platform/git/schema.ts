import { z } from "zod";
import type { App } from "#app.ts";
import { ProjectId } from "../input/schema.ts";
import { hookUrl } from "../projects/schema.ts";
import { providers } from "./webhooks/forges.ts";
import type { WebhookView } from "./webhooks/webhook.ts";

export const ProjectParams = z.object({ project_id: ProjectId });
export const HookParams = z.object({
  hook_id: z.string().max(64).describe("Id of the project's webhook: `hook_`, then 20 letters and digits."),
});

export const ToggleQuery = z.object({
  enable: z.boolean().default(true).describe("True if a push deploys. Default: true."),
  rotate_secret: z
    .boolean()
    .default(false)
    .describe(
      "Create a new secret; only this response contains it. The old secret stops working at once. Default: false. Extension.",
    ),
});

export const Webhook = z
  .object({
    provider: z
      .enum(providers)
      .describe(
        "Forge of the last delivery, else guessed from `repo_url`. `hosted`: the repository is hosted here.",
      ),
    url: z.string().describe("Address for the forge to call. A push to a hosted repository needs no call."),
    secret_hint: z.string().describe("Last four characters of the secret, such as `…k3Fz`."),
    auto_deploy: z
      .boolean()
      .describe("True if a push deploys the environments that follow the pushed branch."),
    last_delivery: z
      .object({
        at: z.iso.datetime().describe("Time of the delivery (UTC)."),
        event: z
          .string()
          .nullable()
          .describe("Event as the forge names it, such as `push`. Null if the delivery named none."),
        status: z
          .int()
          .describe("Status of the response to the forge. 202 for a push to a hosted repository."),
        detail: z.string().describe("Result in words, such as `A deployment of main is queued`."),
      })
      .nullable()
      .describe("Last delivery of the forge, or last push to a hosted repository. Null before the first."),
    secret: z
      .string()
      .meta({ "x-kontor-secret": true })
      .optional()
      .describe("New secret, only in the response that created it. Otherwise absent."),
  })
  .meta({ id: "Webhook" });

export const DeployKey = z
  .object({
    public_key: z
      .string()
      .nullable()
      .describe(
        "Public key in one line, for the forge's deploy keys. Null if the repository is not fetched by ssh.",
      ),
  })
  .meta({ id: "DeployKey" });

export const HookResult = z
  .object({
    result: z
      .enum(["queued", "ignored"])
      .describe("`queued`: deployments are queued. `ignored`: the delivery deploys nothing."),
    detail: z
      .string()
      .describe("Result in words: the deployed branches, or the reason to ignore the delivery."),
    deployments: z.array(z.guid()).describe("Ids (UUID) of the queued deployments; empty if there are none."),
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
