import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { webhookLimitReached, webhookNotFound, webhookUrlRefused } from "./errors.ts";
import { Webhook, WebhookCreate, WebhookList, WebhookParams } from "./schema.ts";
import { enable, get, list, register, remove } from "./webhooks.ts";

const common = { api: "sandbox", tag: "Webhooks" } as const;

export const webhookRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/webhooks",
    operationId: "createSandboxWebhook",
    summary: "Register a webhook",
    description:
      "Each delivery has the headers `X-Service-Event`, `X-Service-Delivery` (the same for retries) and `X-Service-Signature`. The signature is `sha256=` and the hexadecimal HMAC-SHA256 of the raw body, with `secret` as the key. Each delivery has three attempts, 10 s apart; the receiver must respond with 2xx within 10 s. Deliveries of one sandbox arrive in order.",
    scope: "sandboxes:write",
    body: WebhookCreate,
    responses: { 201: Webhook },
    errors: [webhookUrlRefused, webhookLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      activity: "sandbox_webhook.created",
      render: async ({ actor, made: [{ id }] }) => ({ ...(await get(app, actor, String(id))), secret: null }),
    },
    secretFields: ["secret"],
    handler: ({ actor, body }) => register(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/webhooks",
    operationId: "listSandboxWebhooks",
    summary: "List webhooks, newest first",
    scope: "sandboxes:read",
    responses: { 200: WebhookList },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/webhooks/{id}/enable",
    operationId: "enableSandboxWebhook",
    summary: "Enable a disabled webhook",
    scope: "sandboxes:write",
    params: WebhookParams,
    responses: { 200: Webhook },
    errors: [webhookNotFound],
    handler: ({ actor, params }) => enable(app, actor, params.id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/webhooks/{id}",
    operationId: "deleteSandboxWebhook",
    summary: "Delete a webhook",
    scope: "sandboxes:write",
    params: WebhookParams,
    responses: { 204: null },
    errors: [webhookNotFound],
    handler: ({ actor, params }) => remove(app, actor, params.id),
  }),
];
