import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { invalidField } from "../errors.ts";
import { toolsetNotFound } from "../toolsets/errors.ts";
import { disconnect, list, remove } from "./connections.ts";
import { connectionNotFound, noSignIn, signInUnavailable } from "./errors.ts";
import { start } from "./links.ts";
import { ConnectionList, ConnectionParams, SignInLink, SignInStart, ToolsetParams } from "./schema.ts";

const common = { api: "agent", tag: "Toolsets" } as const;

export const connectionRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/oauth/start",
    operationId: "startAgentToolsetSignIn",
    summary: "Make a link by which one person signs in",
    description:
      "The link works once, for ten minutes, in the browser that opens it. What the provider asks of us is tried first: 424 says what can't work.",
    scope: "agents:write",
    params: ToolsetParams,
    body: SignInStart,
    responses: { 200: SignInLink },
    errors: [toolsetNotFound, noSignIn, invalidField, signInUnavailable, accountSuspended],
    handler: ({ actor, params, body }) => start(app, actor, params.toolset_id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/oauth/disconnect",
    operationId: "disconnectAgentToolset",
    whileSuspended: true,
    summary: "Forget the owner's own connection",
    description: "End users' stay. The provider is told that the tokens are not needed any more.",
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
    summary: "List who is signed in, the owner first",
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
    summary: "Forget a connection",
    description: "`-` is the owner's.",
    scope: "agents:write",
    params: ConnectionParams,
    responses: { 204: null },
    errors: [toolsetNotFound, connectionNotFound],
    handler: ({ actor, params }) => remove(app, actor, params),
  }),
];
