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
    summary: "List the keys of models, with a hint only, newest first",
    scope: "agents:read",
    responses: { 200: CredentialList },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/model-credentials",
    operationId: "createModelCredential",
    summary: "Add the key of a model",
    description:
      "By a signed-in person or with a full-access token. The key is never answered, and goes to `base_url` (or the provider's own address) alone.",
    scope: "agents:write",
    extension: true,
    body: CredentialCreate,
    responses: { 201: Credential },
    errors: [fullAccessRequired, invalidField, credentialLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      deed: "model_credential.created",
      render: ({ actor, made: [{ id }] }) => get(app, actor, String(id)),
    },
    handler: ({ actor, body }) => add(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/v1/model-credentials/{id}",
    operationId: "updateModelCredential",
    summary: "Rotate the key of a model, or rename it",
    description:
      "Needs a signed-in session or a full-access token. Every version and open session with the credential uses the new key from its next call on. The provider and `base_url` cannot change: create another credential for another address.",
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
    summary: "Remove the key of a model",
    description:
      "By a signed-in person or with a full-access token. Versions that name it can't run any more.",
    scope: "agents:write",
    extension: true,
    params: CredentialParams,
    responses: { 204: null },
    errors: [fullAccessRequired, credentialNotFound],
    handler: ({ actor, params }) => remove(app, actor, params.id),
  }),
];
