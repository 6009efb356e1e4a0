import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { invalidField } from "../errors.ts";
import { create } from "./create.ts";
import { toolsetInUse, toolsetLimitReached, toolsetNameTaken, toolsetNotFound } from "./errors.ts";
import { remove } from "./remove.ts";
import {
  Toolset,
  ToolsetCreate,
  ToolsetList,
  ToolsetParams,
  toolsetReadOnlyFields,
  ToolsetUpdate,
} from "./schema.ts";
import { list } from "./toolsets.ts";
import { update } from "./update.ts";

const common = { api: "agent", tag: "Toolsets" } as const;

export const toolsetRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agent-toolsets",
    operationId: "listAgentToolsets",
    summary: "List toolsets, newest first",
    scope: "agents:read",
    responses: { 200: ToolsetList },
    handler: ({ actor }) => list(app, actor),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets",
    operationId: "createAgentToolset",
    summary: "Create a toolset",
    description:
      "Tools are HTTP requests as data. Every call carries `Idempotency-Key`, the call's id. Redirects are not followed.",
    scope: "agents:write",
    body: ToolsetCreate,
    responses: { 201: Toolset },
    errors: [invalidField, toolsetNameTaken, toolsetLimitReached, accountSuspended],
    idempotent: true,
    handler: ({ actor, body }) => create(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/v1/agent-toolsets/{toolset_id}",
    operationId: "updateAgentToolset",
    summary: "Change a toolset",
    description: "Agents that use it see the change at their next step.",
    scope: "agents:write",
    params: ToolsetParams,
    body: ToolsetUpdate,
    readOnlyFields: toolsetReadOnlyFields,
    responses: { 200: Toolset },
    errors: [toolsetNotFound, invalidField, accountSuspended],
    handler: ({ actor, params, body }) => update(app, actor, params.toolset_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/agent-toolsets/{toolset_id}",
    operationId: "deleteAgentToolset",
    summary: "Delete a toolset",
    scope: "agents:write",
    params: ToolsetParams,
    responses: { 204: null },
    errors: [toolsetNotFound, toolsetInUse],
    handler: ({ actor, params }) => remove(app, actor, params.toolset_id),
  }),
];
