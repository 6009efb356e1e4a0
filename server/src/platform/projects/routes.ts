import { z } from "zod";
import { accountSuspended, planLimit, workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { VariablesResponse } from "../environments/schema.ts";
import { onProject } from "../audited.ts";
import { createProject } from "./create.ts";
import { type Hosts, ledTo } from "../environments/hosts.ts";
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
const ProjectParams = z.object({ project_id: z.guid() });

export const projectRoutes = (app: App, hosts: Hosts): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects",
    operationId: "listProjects",
    summary: "Projects in all workspaces the caller reaches, newest first",
    scope: "platform:read",
    query: z.object({
      skip: z.int().min(0).default(0),
      limit: z.int().min(1).max(100).default(20),
    }),
    responses: { 200: ProjectListResponse },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/projects",
    operationId: "createProject",
    summary: "Create a project and its production environment",
    description:
      "With a `repo_url` it is tied to that repository; without one it is hosted here, and `git_url` takes a push. The answer holds the webhook's secret, this once.",
    scope: "platform:write",
    body: ProjectCreate,
    responses: { 201: ProjectCreated },
    errors: [nameTaken, domainTaken, planLimit, accountSuspended, workspaceNotFound],
    idempotent: true,
    replay: {
      deed: "project.created",
      render: async ({ actor, made: [{ id }] }) => ({
        ...(await ledTo(app, hosts, get(app, actor, String(id)), (made) => made.id)),
        webhook: null,
      }),
    },
    secretFields: ["webhook"],
    handler: ({ actor, body }) => ledTo(app, hosts, createProject(app, actor, body), (made) => made.id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/check-name/{name}",
    operationId: "checkProjectName",
    summary: "Whether a name is free for a project",
    scope: "platform:read",
    params: z.object({ name: z.string().max(100) }),
    responses: { 200: NameCheck },
    handler: ({ params }) => checkName(app, params.name),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/{project_id}",
    operationId: "getProject",
    summary: "A project",
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
    summary: "Change a project",
    description:
      "What runs is not touched: a change applies at the next deployment. The name stays while anything is deployed. A repository on another host is not shown the token and key of the earlier one.",
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
      ledTo(app, hosts, updateProject(app, actor, params.project_id, body), (changed) => changed.id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/api/v1/projects/{project_id}",
    operationId: "deleteProject",
    summary: "Delete a project and all that it has",
    description:
      "Nobody sees it from now on, and its name and domain are free. Its containers, images and repository are gone within seconds.",
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
    summary: "The project's variables, decrypted",
    description: "Those of an environment beat them; they are asked for at the environment.",
    scope: "platform:read",
    params: ProjectParams,
    responses: { 200: VariablesResponse },
    errors: [projectNotFound],
    audit: { ...onProject, action: "variables.read" },
    handler: ({ actor, params }) => readVariables(app, actor, params.project_id),
  }),
];
