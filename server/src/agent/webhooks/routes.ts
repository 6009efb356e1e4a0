import type { FastifyRequest } from "fastify";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { type Answer, answer, defineRoute, type Route } from "#http/define-route.ts";
import { payloadTooLarge, rateLimited } from "#http/errors.ts";
import { RateLimiter, type RateRule } from "#http/rate-limit.ts";
import { AgentParams } from "../agents/schema.ts";
import { agentNotFound, invalidField, versionNotFound } from "../errors.ts";
import {
  agentArchived,
  agentPaused,
  credentialMissing,
  sessionQueueFull,
  tooManyRuns,
} from "../runs/errors.ts";
import type { AgentRuns } from "../runs/runs.ts";
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
/** As many as a token's invokes. */
const delivered: RateRule = { name: "delivered", perMinute: 120 };
/** Whoever knows the address can ask for a body to be read and hashed; not for one after the other. */
const knocked: RateRule = { name: "knocked", perMinute: 600 };

export const webhookRoutes = (app: App, runs: AgentRuns): Route[] => {
  const limiter = new RateLimiter(app.clock);
  return [
    defineRoute({
      ...common,
      method: "GET",
      path: "/v1/agents/{agent}/webhooks",
      operationId: "listAgentWebhooks",
      summary: "List an agent's webhooks, with a hint of their secrets only, newest first",
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
      summary: "Create an address at which others ask an agent something",
      description: "The secret is in this answer and in no other.",
      scope: "agents:write",
      params: AgentParams,
      body: WebhookCreate,
      responses: { 201: WebhookWithSecret },
      errors: [agentNotFound, invalidField, webhookLimitReached, accountSuspended],
      idempotent: true,
      replay: {
        deed: "agent_webhook.created",
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
      summary: "Change a webhook, or turn it off or on",
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
      summary: "Give a webhook a new secret",
      description: "The new one is in this answer and in no other; the old one is refused from then on.",
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
      description: "Runs that it began go on.",
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
      summary: "What others deliver to an agent",
      description:
        "Takes any body of up to 1 MiB. Proof is the webhook's secret, as `Authorization: Bearer <secret>`, or a signature with it over the raw body: `X-Service-Signature: sha256=<hex>` or `X-Hub-Signature-256: sha256=<hex>` (HMAC-SHA256, keyed with the whole secret), or `webhook-id`, `webhook-timestamp` and `webhook-signature` as Standard Webhooks has them. A delivery with the same `webhook-id`, `X-GitHub-Delivery` or `X-Service-Delivery` within 24 hours is answered with the same run, and counts once. In a busy session of the webhook's `session` key the run is `queued` until the runs before it are over.",
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
  runs: AgentRuns,
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
