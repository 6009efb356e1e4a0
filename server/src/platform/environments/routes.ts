import { z } from "zod";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { ProjectId } from "../input/schema.ts";
import { projectNotFound } from "../projects/errors.ts";
import { onProject } from "../audit-targets.ts";
import { createEnvironment } from "./create.ts";
import { type Hosts, refreshHostsAfter } from "./hosts.ts";
import { deleteEnvironment } from "./delete.ts";
import { get, list, readVariables } from "./environments.ts";
import { environmentExists, environmentNotFound, environmentProtected } from "./errors.ts";
import {
  EnvironmentCreate,
  EnvironmentParams,
  EnvironmentResponse,
  EnvironmentUpdate,
  readOnlyFields,
  VariablesResponse,
} from "./schema.ts";
import { updateEnvironment } from "./update.ts";

const common = { api: "platform", tag: "Environments" } as const;
const path = "/api/v1/projects/{project_id}/environments";
const ofProject = z.object({ project_id: ProjectId });

export const environmentRoutes = (app: App, hosts: Hosts): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "listEnvironments",
    summary: "List environments",
    description: "Returns the environments of the project, production first.",
    scope: "platform:read",
    params: ofProject,
    responses: { 200: z.array(EnvironmentResponse) },
    errors: [projectNotFound],
    handler: ({ actor, params }) => list(app, actor, params.project_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path,
    operationId: "createEnvironment",
    summary: "Create an environment",
    description:
      "The environment has its own branch and host: `{slug}--{name}.{apps_domain}`. It serves requests after its first deployment. The size is the largest that the plan allows.",
    scope: "platform:write",
    params: ofProject,
    body: EnvironmentCreate,
    responses: { 201: EnvironmentResponse },
    errors: [projectNotFound, environmentExists, planLimit, accountSuspended],
    idempotent: true,
    replay: {
      activity: "environment.created",
      render: ({ actor, params, made: [{ id }] }) =>
        refreshHostsAfter(
          app,
          hosts,
          get(app, actor, params.project_id, String(id)),
          (made) => made.project_id,
        ),
    },
    handler: ({ actor, params, body }) =>
      refreshHostsAfter(
        app,
        hosts,
        createEnvironment(app, actor, params.project_id, body),
        (made) => made.project_id,
      ),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path: `${path}/{env_id}`,
    operationId: "updateEnvironment",
    summary: "Update an environment",
    description:
      "Changes the branch, variables or size. The running app does not change. Variables apply at the next deploy, restart or wake; the size at the next deploy or restart.",
    scope: "platform:write",
    params: EnvironmentParams,
    body: EnvironmentUpdate,
    readOnlyFields,
    responses: { 200: EnvironmentResponse },
    errors: [projectNotFound, environmentNotFound, planLimit, accountSuspended],
    handler: ({ actor, params, body }) =>
      updateEnvironment(app, actor, params.project_id, params.env_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: `${path}/{env_id}`,
    operationId: "deleteEnvironment",
    summary: "Delete an environment",
    description:
      "Takes effect at once, and frees the host name. The server removes the app within seconds. Production cannot be deleted: 409 `environment_protected`.",
    scope: "platform:write",
    params: EnvironmentParams,
    responses: { 204: null },
    errors: [projectNotFound, environmentNotFound, environmentProtected],
    handler: ({ actor, params }) => deleteEnvironment(app, actor, params.project_id, params.env_id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/{env_id}/env-vars`,
    operationId: "getEnvironmentVariables",
    summary: "Get an environment's variables",
    description: "Returns the environment's own variables, decrypted, without those of the project.",
    scope: "platform:read",
    params: EnvironmentParams,
    responses: { 200: VariablesResponse },
    errors: [projectNotFound, environmentNotFound],
    audit: {
      ...onProject,
      action: "variables.read",
      detail: ({ params }) => ({ environment_id: params.env_id }),
    },
    handler: ({ actor, params }) => readVariables(app, actor, params.project_id, params.env_id),
  }),
];
