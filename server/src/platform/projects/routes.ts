import { z } from "zod";
import { accountSuspended, planLimit, workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { VariablesResponse } from "../environments/schema.ts";
import { pageQuery, ProjectId } from "../input/schema.ts";
import { onProject } from "../audit-targets.ts";
import { createProject } from "./create.ts";
import { type Hosts, refreshHostsAfter } from "../environments/hosts.ts";
import { deleteProject } from "./delete.ts";
import { domainTaken, nameTaken, projectDeployed, projectHasAddons, projectNotFound } from "./errors.ts";
import { updateProject } from "./update.ts";
import { checkName } from "./names.ts";
import { get, list, readVariables } from "./projects.ts";
import {
  NameCheck,
  ProjectCreate,
  ProjectCreated,
  ProjectListResponse,
  ProjectResponse,
  ProjectUpdate,
  readOnlyFields,
} from "./schema.ts";

const common = { api: "platform", tag: "Projects" } as const;
const ProjectParams = z.object({ project_id: ProjectId });

export const projectRoutes = (app: App, hosts: Hosts): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects",
    operationId: "listProjects",
    summary: "List projects",
    description: "Returns the projects of all workspaces that the caller reaches, newest first.",
    scope: "platform:read",
    query: z.object(pageQuery),
    responses: { 200: ProjectListResponse },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/projects",
    operationId: "createProject",
    summary: "Create a project",
    description:
      "Creates the project and its production environment. With `repo_url`, the project deploys from that repository. Without it, this server hosts the repository; push to `git_url`. The response contains the webhook's secret, only this once.",
    scope: "platform:write",
    body: ProjectCreate,
    responses: { 201: ProjectCreated },
    errors: [nameTaken, domainTaken, planLimit, accountSuspended, workspaceNotFound],
    idempotent: true,
    replay: {
      activity: "project.created",
      render: async ({ actor, made: [{ id }] }) => ({
        ...(await refreshHostsAfter(app, hosts, get(app, actor, String(id)), (made) => made.id)),
        webhook: null,
      }),
    },
    secretFields: ["webhook"],
    handler: ({ actor, body }) =>
      refreshHostsAfter(app, hosts, createProject(app, actor, body), (made) => made.id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/check-name/{name}",
    operationId: "checkProjectName",
    summary: "Check a project name",
    description:
      "Returns whether a new project can have the name. Names are unique over all projects and functions.",
    scope: "platform:read",
    params: z.object({
      name: z.string().max(100).describe("Name to check, such as `shop`; at most 100 characters."),
    }),
    responses: { 200: NameCheck },
    handler: ({ params }) => checkName(app, params.name),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/{project_id}",
    operationId: "getProject",
    summary: "Get a project",
    scope: "platform:read",
    params: ProjectParams,
    responses: { 200: ProjectResponse },
    errors: [projectNotFound],
    handler: ({ actor, params }) => get(app, actor, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: "/api/v1/projects/{project_id}",
    operationId: "updateProject",
    summary: "Update a project",
    description:
      "The running app does not change. Settings apply at the next deployment; variables also at the next restart or wake. `auto_deploy` applies at once, `custom_domain` as soon as DNS is verified. A project that is deployed or has add-ons keeps its name: another one gets a 409. If `repo_url` moves to another scheme, host or port, the stored `git_token` and deploy key are deleted.",
    scope: "platform:write",
    params: ProjectParams,
    body: ProjectUpdate,
    readOnlyFields,
    responses: { 200: ProjectResponse },
    errors: [
      projectNotFound,
      nameTaken,
      projectDeployed,
      projectHasAddons,
      domainTaken,
      accountSuspended,
      workspaceNotFound,
    ],
    handler: ({ actor, params, body }) =>
      refreshHostsAfter(
        app,
        hosts,
        updateProject(app, actor, params.project_id, body),
        (changed) => changed.id,
      ),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/api/v1/projects/{project_id}",
    operationId: "deleteProject",
    summary: "Delete a project",
    description:
      "Takes effect at once, and frees the name and the domain. The server removes apps, add-ons, images and the hosted repository within seconds.",
    scope: "platform:write",
    params: ProjectParams,
    responses: { 204: null },
    errors: [projectNotFound],
    handler: ({ actor, params }) => deleteProject(app, actor, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/{project_id}/env-vars",
    operationId: "getProjectVariables",
    summary: "Get a project's variables",
    description:
      "Returns the decrypted values. Variables of an environment override these; get them from the environment.",
    scope: "platform:read",
    params: ProjectParams,
    responses: { 200: VariablesResponse },
    errors: [projectNotFound],
    audit: { ...onProject, action: "variables.read" },
    handler: ({ actor, params }) => readVariables(app, actor, params.project_id),
  }),
];
