import { workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { WorkspaceSections } from "./workspace-sections.ts";
import { DashboardSummary, WorkspaceQuery, WorkspaceSnapshot } from "./schema.ts";
import { dashboard, snapshot } from "./workspace.ts";

const common = { api: "platform", tag: "Workspace" } as const;

export const workspaceRoutes = (app: App, sections: WorkspaceSections): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/workspace",
    operationId: "getWorkspace",
    summary: "Get a workspace snapshot",
    description: "Each list is capped and has a `total`. The snapshot never contains environment variables.",
    scope: "platform:read",
    query: WorkspaceQuery,
    responses: { 200: WorkspaceSnapshot },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => snapshot(app, actor, query.workspace, sections),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/dashboard/summary",
    operationId: "getDashboardSummary",
    summary: "Get the dashboard summary",
    description:
      "Returns the number of projects, the newest deployments, and the usage of the plan's limits.",
    scope: "platform:read",
    query: WorkspaceQuery,
    responses: { 200: DashboardSummary },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => dashboard(app, actor, query.workspace),
  }),
];
