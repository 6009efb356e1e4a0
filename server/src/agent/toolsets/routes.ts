import { accountSuspended } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { invalidField } from "../errors.ts";
import { create } from "./create.ts";
import {
  toolsetInUse,
  toolsetLimitReached,
  toolsetNameTaken,
  toolsetNotFound,
  toolsetNotRefreshable,
} from "./errors.ts";
import { catalog } from "./catalog.ts";
import { refresh } from "./refresh.ts";
import { remove } from "./remove.ts";
import {
  Catalog,
  Toolset,
  ToolsetCreate,
  ToolsetList,
  ToolsetParams,
  toolsetReadOnlyFields,
  ToolsetUpdate,
  toToolset,
} from "./schema.ts";
import { getToolset, list } from "./toolsets.ts";
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
      "Tools of kind http are requests as data: every call carries `Idempotency-Key`, the call's id, and redirects are not followed. Those of kind mcp are read from the server; one that can't be read is created all the same, and `status` says so.",
    scope: "agents:write",
    body: ToolsetCreate,
    responses: { 201: Toolset },
    errors: [invalidField, toolsetNameTaken, toolsetLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      deed: "agent_toolset.created",
      render: async ({ actor, made: [{ id }] }) => toToolset(await getToolset(app.db, actor, String(id))),
    },
    handler: ({ actor, body }) => create(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agent-toolsets/catalog",
    operationId: "listAgentToolsetCatalog",
    summary: "List connectors that vendors run",
    description: "A toolset with its slug as `catalog_slug` needs no address; then somebody signs in to it.",
    scope: "agents:read",
    responses: { 200: Catalog },
    handler: () => ({ items: catalog }),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/refresh",
    operationId: "refreshAgentToolset",
    summary: "Read an MCP server's tools anew",
    description:
      "Where the server can't be read, `status` and `last_error` say why, and the tools stay as they were.",
    scope: "agents:write",
    params: ToolsetParams,
    responses: { 200: Toolset },
    errors: [toolsetNotFound, toolsetNotRefreshable, accountSuspended],
    handler: ({ actor, params }) => refresh(app, actor, params.toolset_id),
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
