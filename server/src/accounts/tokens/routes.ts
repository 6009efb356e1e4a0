import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { accountSuspended, planLimit, workspaceNotFound } from "../errors.ts";
import { fullAccessErrors as guards } from "../full-access.ts";
import { ApiTokenCreate, ApiTokenCreated, ApiTokenResponse, toApiToken } from "./schema.ts";
import { createToken, getToken, listTokens, revokeToken, tokenNotFound } from "./tokens.ts";

export const tokenRoutes = (app: Pick<App, "db" | "clock">): Route[] => [
  defineRoute({
    api: "platform",
    method: "GET",
    path: "/api/v1/api-tokens",
    operationId: "listApiTokens",
    tag: "API tokens",
    summary: "List the caller's API tokens",
    description: "Returns hashes and prefixes, never plaintexts.",
    scope: null,
    responses: { 200: z.array(ApiTokenResponse) },
    errors: guards,
    handler: async ({ actor }) => (await listTokens(app, actor)).map((row) => toApiToken(row, actor)),
  }),
  defineRoute({
    api: "platform",
    method: "POST",
    path: "/api/v1/api-tokens",
    operationId: "createApiToken",
    tag: "API tokens",
    summary: "Create an API token",
    description: "The response contains the plaintext, only this once.",
    scope: null,
    body: ApiTokenCreate,
    responses: { 201: ApiTokenCreated },
    errors: [...guards, planLimit, accountSuspended, workspaceNotFound],
    idempotent: true,
    replay: {
      activity: "api_token.created",
      render: async ({ actor, made: [{ id }] }) => ({
        ...toApiToken(await getToken(app, actor, String(id)), actor),
        token: null,
      }),
    },
    secretFields: ["token"],
    handler: async ({ actor, body }) => {
      const row = await createToken(app, actor, { ...body, expiresInDays: body.expires_in_days });
      return { ...toApiToken(row, actor), token: row.token };
    },
  }),
  defineRoute({
    api: "platform",
    method: "DELETE",
    path: "/api/v1/api-tokens/{token_id}",
    operationId: "revokeApiToken",
    tag: "API tokens",
    summary: "Revoke an API token",
    description: "The token stops working at once.",
    scope: null,
    responses: { 204: null },
    errors: [...guards, tokenNotFound],
    handler: ({ actor, params }) => revokeToken(app, actor, params.token_id),
    params: z.object({
      token_id: z.string().max(64).describe("Id of the token, such as `tok_3k9x0c1m5r7t`."),
    }),
  }),
];
