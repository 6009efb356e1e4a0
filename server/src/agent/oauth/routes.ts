import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { invalidField } from "../errors.ts";
import { toolsetNotFound } from "../toolsets/errors.ts";
import { disconnect, list, remove } from "./connections.ts";
import { connectionNotFound, noSignIn, signInUnavailable } from "./errors.ts";
import { createSignInLink } from "./flow/links.ts";
import { ConnectionList, ConnectionParams, SignInLink, SignInStart, ToolsetParams } from "./schema.ts";

const common = { api: "agent", tag: "Toolsets" } as const;

export const connectionRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/oauth/start",
    operationId: "startAgentToolsetSignIn",
    summary: "Create a sign-in link",
    description:
      "Creates a link for one person. It works once, for ten minutes, in the browser that opens it. The server checks the provider first and returns 424 `sign_in_unavailable` with the cause if sign-in cannot work.",
    scope: "agents:write",
    params: ToolsetParams,
    body: SignInStart,
    responses: { 200: SignInLink },
    errors: [toolsetNotFound, noSignIn, invalidField, signInUnavailable, accountSuspended],
    handler: ({ actor, params, body }) => createSignInLink(app, actor, params.toolset_id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/oauth/disconnect",
    operationId: "disconnectAgentToolset",
    whileSuspended: true,
    summary: "Delete the owner's connection",
    description:
      "Deletes the connection of the workspace's owner; connections of end users stay. The server then requests the provider to revoke the tokens, if it supports revocation.",
    scope: "agents:write",
    params: ToolsetParams,
    responses: { 204: null },
    errors: [toolsetNotFound],
    handler: ({ actor, params }) => disconnect(app, actor, params.toolset_id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agent-toolsets/{toolset_id}/connections",
    operationId: "listAgentConnections",
    summary: "List a toolset's connections",
    description: "Returns the toolset's connections: the owner's first, then by last sign-in.",
    scope: "agents:read",
    params: ToolsetParams,
    responses: { 200: ConnectionList },
    errors: [toolsetNotFound],
    handler: ({ actor, params }) => list(app, actor, params.toolset_id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/agent-toolsets/{toolset_id}/connections/{end_user_id}",
    operationId: "deleteAgentConnection",
    summary: "Delete a connection",
    description:
      "Deletes the connection of one end user, or of the owner with `-`. The server then requests the provider to revoke the tokens, if it supports revocation.",
    scope: "agents:write",
    params: ConnectionParams,
    responses: { 204: null },
    errors: [toolsetNotFound, connectionNotFound],
    handler: ({ actor, params }) => remove(app, actor, params),
  }),
];
