import type { FastifyRequest } from "fastify";
import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { answer, defineRoute, type Route } from "#http/define-route.ts";
import { payloadTooLarge, rateLimited } from "#http/errors.ts";
import { RateLimiter } from "#http/limits/rate-limit.ts";
import { projectNotFound } from "../projects/errors.ts";
import { hookNotFound, payloadInvalid, signatureInvalid } from "./errors.ts";
import { findHookProject, receiveHook } from "./webhooks/receive-hook.ts";
import {
  DeployKey,
  HookParams,
  HookResult,
  ProjectParams,
  ToggleQuery,
  toWebhook,
  Webhook,
} from "./schema.ts";
import { getDeployKey, getWebhook, toggleWebhook } from "./webhooks/webhook.ts";

const common = { api: "platform", tag: "Webhooks" } as const;

/**
 * Limit of a delivery's body in bytes. The limit suffices for a push of thousands of commits with their changes.
 * GitHub's limit is 25 MB, and real deliveries stay far below.
 */
const hookMaxBytes = 8 * 1024 * 1024;
/** Limit of deliveries per minute, far above a normal rate of pushes. Further ones get a 429 response. */
const hooksPerMinute = 60;

export const gitRoutes = (app: App): Route[] => {
  const limiter = new RateLimiter(app.clock);
  return [
    defineRoute({
      ...common,
      method: "GET",
      path: "/api/v1/projects/{project_id}/webhook",
      operationId: "getProjectWebhook",
      summary: "Get a project's webhook settings",
      description:
        "To deploy on push, add a webhook at the forge with `url`, content type JSON, push events and the secret. The response to the project's creation contains the secret. `webhook/toggle` with `rotate_secret=true` creates a new secret.",
      scope: "platform:read",
      params: ProjectParams,
      responses: { 200: Webhook },
      errors: [projectNotFound],
      handler: async ({ actor, params }) => toWebhook(app, await getWebhook(app, actor, params.project_id)),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: "/api/v1/projects/{project_id}/webhook/toggle",
      operationId: "toggleProjectWebhook",
      summary: "Enable or disable deploys on push",
      description:
        "Sets `auto_deploy` of the project. `rotate_secret=true` also replaces the webhook's secret.",
      scope: "platform:write",
      params: ProjectParams,
      query: ToggleQuery,
      responses: { 200: Webhook },
      errors: [projectNotFound, accountSuspended],
      handler: async ({ actor, params, query }) =>
        toWebhook(app, await toggleWebhook(app, actor, params.project_id, query)),
    }),
    defineRoute({
      ...common,
      method: "GET",
      path: "/api/v1/projects/{project_id}/deploy-key",
      operationId: "getProjectDeployKey",
      summary: "Get a project's deploy key",
      description: "Add the key at the forge, so that the server can fetch the repository by ssh.",
      scope: "platform:read",
      params: ProjectParams,
      responses: { 200: DeployKey },
      errors: [projectNotFound],
      extension: true,
      handler: async ({ actor, params }) => ({
        public_key: await getDeployKey(app, actor, params.project_id),
      }),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: "/api/v1/hooks/git/{hook_id}",
      operationId: "receiveGitHook",
      summary: "Receive a webhook from a forge",
      description:
        "Accepts push events from GitHub, GitLab, Gitea, Forgejo and Bitbucket. The forge signs the raw body with HMAC-SHA256 under the project's webhook secret. It sends the hexadecimal signature as `X-Hub-Signature-256`, `X-Gitea-Signature`, `X-Forgejo-Signature` or `X-Hub-Signature`. GitLab sends the secret itself as `X-Gitlab-Token`. A delivery that deploys nothing has `result: ignored`, with the reason in `detail`. A delivery that is repeated within 24 hours deploys once.",
      scope: "public",
      params: HookParams,
      bodyType: "stream",
      bodyLimit: hookMaxBytes,
      responses: { 202: HookResult },
      errors: [hookNotFound, signatureInvalid, payloadInvalid, accountSuspended, rateLimited],
      extension: true,
      handler: async ({ params, request }) => {
        const project = await findHookProject(app, params.hook_id);
        const rule = { name: "hook", perMinute: hooksPerMinute };
        const { isAllowed, retryAfterSeconds } = limiter.take(project.id, rule);
        if (!isAllowed && app.config.rateLimits) throw rateLimited(retryAfterSeconds);
        const body = await bodyOf(request);
        return answer(202, await receiveHook(app, project, { headers: request.headers, body }));
      },
    }),
  ];
};

async function bodyOf(request: FastifyRequest): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request.raw as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > hookMaxBytes) throw payloadTooLarge(hookMaxBytes);
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}
