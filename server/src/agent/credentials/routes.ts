import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { invalidField } from "../errors.ts";
import { add, get, list, remove, update } from "./credentials.ts";
import { credentialLimitReached, credentialNotFound, fullAccessRequired } from "./errors.ts";
import {
  Credential,
  CredentialCreate,
  CredentialList,
  CredentialParams,
  CredentialUpdate,
} from "./schema.ts";

const common = { api: "agent", tag: "Model credentials" } as const;

export const credentialRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/model-credentials",
    operationId: "listModelCredentials",
    summary: "List model credentials",
    description: "Returns credentials with a hint of each key, newest first.",
    scope: "agents:read",
    responses: { 200: CredentialList },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/model-credentials",
    operationId: "createModelCredential",
    summary: "Create a model credential",
    description:
      "Requires a signed-in session or a full-access token. The key is never returned. It is sent only to `base_url`, or to the provider's own address.",
    scope: "agents:write",
    extension: true,
    body: CredentialCreate,
    responses: { 201: Credential },
    errors: [fullAccessRequired, invalidField, credentialLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      activity: "model_credential.created",
      render: ({ actor, made: [{ id }] }) => get(app, actor, String(id)),
    },
    handler: ({ actor, body }) => add(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/v1/model-credentials/{id}",
    operationId: "updateModelCredential",
    summary: "Update a model credential",
    description:
      "Rotates the key or renames the credential. Requires a signed-in session or a full-access token. Runs use the new key from their next model call on. The provider and `base_url` cannot change: create another credential for another address.",
    scope: "agents:write",
    extension: true,
    params: CredentialParams,
    body: CredentialUpdate,
    responses: { 200: Credential },
    errors: [fullAccessRequired, credentialNotFound, accountSuspended],
    handler: ({ actor, params, body }) => update(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/model-credentials/{id}",
    operationId: "deleteModelCredential",
    summary: "Delete a model credential",
    description:
      "Requires a signed-in session or a full-access token. Invokes of versions whose model uses the credential then return 424 `credential_missing`.",
    scope: "agents:write",
    extension: true,
    params: CredentialParams,
    responses: { 204: null },
    errors: [fullAccessRequired, credentialNotFound],
    handler: ({ actor, params }) => remove(app, actor, params.id),
  }),
];
