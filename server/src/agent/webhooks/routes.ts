import type { FastifyRequest } from "fastify";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { type Answer, answer, defineRoute, type Route } from "#http/define-route.ts";
import { payloadTooLarge, rateLimited } from "#http/errors.ts";
import { RateLimiter, type RateRule } from "#http/limits/rate-limit.ts";
import { AgentParams } from "../agents/schema.ts";
import { agentNotFound, invalidField, versionNotFound } from "../errors.ts";
import {
  agentArchived,
  agentPaused,
  credentialMissing,
  sessionQueueFull,
  tooManyRuns,
} from "../runs/api/run-errors.ts";
import type { RunExecutor } from "../runs/engine/run-executor.ts";
import { sessionCapReached, sessionFull } from "../sessions/errors.ts";
import {
  dailyCapReached,
  endUserInvalid,
  inputEmpty,
  inputTooLarge,
  sessionKeyTooLong,
  signatureInvalid,
  webhookDisabled,
  webhookLimitReached,
  webhookNotFound,
} from "./errors.ts";
import { getReceiving, receive, requireAuthentic } from "./receive.ts";
import {
  Received,
  ReceiveParams,
  ReceiveQuery,
  Webhook,
  WebhookCreate,
  WebhookList,
  WebhookParams,
  webhookReadOnlyFields,
  WebhookUpdate,
  WebhookWithSecret,
} from "./schema.ts";
import { create, get, list, remove, rotate, update } from "./webhooks.ts";

const common = { api: "agent", tag: "Triggers" } as const;

const deliveryMaxBytes = 1024 ** 2;
/** Limits the authentic deliveries of a webhook, as the invokes of a token are limited. */
const delivered: RateRule = { name: "delivered", perMinute: 120 };
/** Limits the requests to a webhook, because their bodies are read and hashed before authentication. */
const knocked: RateRule = { name: "knocked", perMinute: 600 };

export const webhookRoutes = (app: App, runs: RunExecutor): Route[] => {
  const limiter = new RateLimiter(app.clock);
  return [
    defineRoute({
      ...common,
      method: "GET",
      path: "/v1/agents/{agent}/webhooks",
      operationId: "listAgentWebhooks",
      summary: "List an agent's webhooks",
      description: "Returns webhooks with a hint of each secret, newest first.",
      scope: "agents:read",
      params: AgentParams,
      responses: { 200: WebhookList },
      errors: [agentNotFound],
      handler: ({ actor, params }) => list(app, actor, params.agent),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: "/v1/agents/{agent}/webhooks",
      operationId: "createAgentWebhook",
      summary: "Create a webhook",
      description:
        "Creates a URL that starts a run for each delivery. Only this response contains the secret.",
      scope: "agents:write",
      params: AgentParams,
      body: WebhookCreate,
      responses: { 201: WebhookWithSecret },
      errors: [agentNotFound, invalidField, webhookLimitReached, accountSuspended],
      idempotent: true,
      replay: {
        activity: "agent_webhook.created",
        render: async ({ actor, params, made: [{ id }] }) => ({
          ...(await get(app, actor, params.agent, String(id))),
          secret: null,
        }),
      },
      secretFields: ["secret"],
      handler: ({ actor, params, body }) => create(app, actor, params.agent, body),
    }),
    defineRoute({
      ...common,
      method: "PATCH",
      path: "/v1/agents/{agent}/webhooks/{webhook_id}",
      operationId: "updateAgentWebhook",
      summary: "Update a webhook",
      description: "Changes the given fields. `enabled` turns the webhook on or off.",
      scope: "agents:write",
      params: WebhookParams,
      body: WebhookUpdate,
      readOnlyFields: webhookReadOnlyFields,
      responses: { 200: Webhook },
      errors: [agentNotFound, webhookNotFound, invalidField, accountSuspended],
      handler: ({ actor, params, body }) => update(app, actor, params.agent, params.webhook_id, body),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: "/v1/agents/{agent}/webhooks/{webhook_id}/rotate",
      operationId: "rotateAgentWebhook",
      needsSecrets: true,
      summary: "Rotate a webhook's secret",
      description:
        "Only this response contains the new secret. Deliveries with the old secret return 401 `signature_invalid` from then on.",
      scope: "agents:write",
      params: WebhookParams,
      responses: { 200: WebhookWithSecret },
      errors: [agentNotFound, webhookNotFound, accountSuspended],
      handler: ({ actor, params }) => rotate(app, actor, params.agent, params.webhook_id),
    }),
    defineRoute({
      ...common,
      method: "DELETE",
      path: "/v1/agents/{agent}/webhooks/{webhook_id}",
      operationId: "deleteAgentWebhook",
      summary: "Delete a webhook",
      description: "Active runs of the webhook continue.",
      scope: "agents:write",
      params: WebhookParams,
      responses: { 204: null },
      errors: [agentNotFound, webhookNotFound],
      handler: ({ actor, params }) => remove(app, actor, params.agent, params.webhook_id),
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: "/v1/hooks/agents/{webhook_id}",
      operationId: "receiveAgentWebhook",
      summary: "Deliver an event to a webhook",
      description:
        "Starts a run for the delivery. The body may have any type and at most 1 MiB. Send the webhook's secret as `Authorization: Bearer <secret>`, or sign the raw body with it in one of two ways. (1) `X-Service-Signature: sha256=<hex>` or `X-Hub-Signature-256: sha256=<hex>` contains the HMAC-SHA256, keyed with the whole secret. (2) `webhook-id`, `webhook-timestamp` and `webhook-signature` follow Standard Webhooks; the timestamp may be off by 5 minutes. A repeat of `webhook-id`, `X-GitHub-Delivery` or `X-Service-Delivery` within 24 hours returns the same run and counts once. If the session of the webhook's `session` key is busy, the run is `queued` until earlier runs end.",
      scope: "public",
      params: ReceiveParams,
      query: ReceiveQuery,
      bodyType: "stream",
      bodyLimit: deliveryMaxBytes,
      responses: { 202: Received },
      errors: [
        webhookNotFound,
        signatureInvalid,
        webhookDisabled,
        dailyCapReached,
        rateLimited,
        inputEmpty,
        inputTooLarge,
        endUserInvalid,
        sessionKeyTooLong,
        sessionQueueFull,
        sessionFull,
        accountSuspended,
        agentArchived,
        agentPaused,
        planLimit,
        agentNotFound,
        versionNotFound,
        credentialMissing,
        sessionCapReached,
        tooManyRuns,
        invalidField,
      ],
      handler: ({ params, query, request }) =>
        receiveRequest(app, runs, limiter, { id: params.webhook_id, query, request }),
    }),
  ];
};

async function receiveRequest(
  app: App,
  runs: RunExecutor,
  limiter: RateLimiter,
  { id, query, request }: { id: string; query: unknown; request: FastifyRequest },
): Promise<Answer> {
  const webhook = await getReceiving(app, id);
  const take = (rule: RateRule) => {
    const { isAllowed, retryAfterSeconds } = limiter.take(id, rule);
    if (!isAllowed && app.config.rateLimits) throw rateLimited(retryAfterSeconds);
  };
  take(knocked);
  const delivery = { headers: request.headers, query, body: await bodyOf(request) };
  requireAuthentic(app, webhook, delivery);
  take(delivered);
  return answer(202, await receive(app, runs, webhook, delivery));
}

async function bodyOf(request: FastifyRequest): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request.raw as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > deliveryMaxBytes) throw payloadTooLarge(deliveryMaxBytes);
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}
