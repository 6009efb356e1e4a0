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
import { catalog } from "./tools/catalog.ts";
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
    summary: "List toolsets",
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
      "Tools of the kind `http` are requests as data. Every call sends its id as `Idempotency-Key`; redirects are not followed. Tools of the kind `mcp` are read from the server. If the server cannot be read, the toolset is created anyway; `status` and `last_error` contain the cause.",
    scope: "agents:write",
    body: ToolsetCreate,
    responses: { 201: Toolset },
    errors: [invalidField, toolsetNameTaken, toolsetLimitReached, accountSuspended],
    idempotent: true,
    replay: {
      activity: "agent_toolset.created",
      render: async ({ actor, made: [{ id }] }) => toToolset(await getToolset(app.db, actor, String(id))),
    },
    handler: ({ actor, body }) => create(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agent-toolsets/catalog",
    operationId: "listAgentToolsetCatalog",
    summary: "List the catalog's connectors",
    description:
      "Returns MCP servers that vendors run. A toolset with a connector's `slug` as `catalog_slug` needs no `url`. Then a person signs in to it.",
    scope: "agents:read",
    responses: { 200: Catalog },
    handler: () => ({ items: catalog }),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agent-toolsets/{toolset_id}/refresh",
    operationId: "refreshAgentToolset",
    summary: "Refresh an MCP toolset's tools",
    description:
      "Reads the tools from the MCP server again. If the server cannot be read, the tools stay as they were; `status` and `last_error` contain the cause.",
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
    summary: "Update a toolset",
    description: "Agents that use the toolset get the change at their next step.",
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
    description:
      "Deletes the toolset with its connections. Returns 409 `toolset_in_use` while an alias points at a version that uses it.",
    scope: "agents:write",
    params: ToolsetParams,
    responses: { 204: null },
    errors: [toolsetNotFound, toolsetInUse],
    handler: ({ actor, params }) => remove(app, actor, params.toolset_id),
  }),
];
