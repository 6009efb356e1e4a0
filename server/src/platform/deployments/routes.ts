import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { nothingDeployed } from "../apps/errors.ts";
import { getEnvironment } from "../environments/environments.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import { getProject } from "../projects/projects.ts";
import { cancelDeployment } from "./request/cancel.ts";
import { deploy } from "./request/deploy.ts";
import { deploymentStats, getDeployment } from "./deployments.ts";
import {
  deploymentInProgress,
  deploymentNotCancellable,
  deploymentNotFound,
  imagePruned,
  notRollbackable,
} from "./errors.ts";
import { followDeployment, readBuildLog, readLogs } from "./logs.ts";
import type { Pipeline } from "./pipeline/pipeline.ts";
import { restart } from "./request/restart.ts";
import { rollback } from "./request/rollback.ts";
import {
  BuildLog,
  DeploymentListResponse,
  DeploymentLogEntry,
  DeploymentLogEvent,
  DeploymentParams,
  DeploymentResponse,
  DeploymentStats,
  DeployQuery,
  ListQuery,
  LogsQuery,
  ProjectParams,
  RestartQuery,
  RollbackQuery,
  StatsQuery,
  toDeployment,
  toLogEntry,
  toLogEvent,
  toStats,
} from "./schema.ts";
import { listDeployments } from "./store.ts";
import { triggerKind } from "./request/triggers.ts";

const common = { api: "platform", tag: "Deployments" } as const;
const ofProject = "/api/v1/projects/{project_id}/deployments";
const path = "/api/v1/deployments/{deployment_id}";

export const deploymentRoutes = (app: App, images: Pick<Pipeline, "findAppImage">): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: ofProject,
    operationId: "createDeployment",
    summary: "Deploy a project",
    description:
      "Deploys the newest commit, or the one given by `commit` or `tag`, or an `image` of a registry. Reuses the image of a commit that was built with the same settings and variables, and an image with the same digest. A private registry needs the project's `registry_credential`. Returns at once with `status: queued`; poll the deployment or follow its log. The previous version stays live until the new one is healthy.",
    scope: "platform:write",
    params: ProjectParams,
    query: DeployQuery,
    responses: { 201: DeploymentResponse },
    errors: [projectNotFound, environmentNotFound, deploymentInProgress, accountSuspended],
    idempotent: true,
    replay: {
      activity: "deployment.created",
      render: async ({ actor, made: [{ id }] }) =>
        toDeployment(app, await getDeployment(app, actor, String(id))),
    },
    handler: async ({ actor, params, query }) => {
      const found = await getEnvironment(app, actor, params.project_id, query.environment_id);
      const { project, environment } = found;
      const { commit: sha, tag, image, rebuild } = query;
      const request = {
        project,
        environmentId: environment.id,
        trigger: triggerKind(actor),
        rebuild,
        ...(sha !== undefined && { sha }),
        ...(tag !== undefined && { tag }),
        ...(image !== undefined && { image }),
      };
      return toDeployment(app, await deploy(app, actor, request));
    },
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/projects/{project_id}/restart",
    operationId: "restartProject",
    summary: "Restart an app",
    description:
      "Deploys the live image again with the environment's current variables, without a build. The previous machine serves until the new one is healthy. A sleeping app wakes up.",
    scope: "platform:write",
    extension: true,
    params: ProjectParams,
    query: RestartQuery,
    responses: { 200: DeploymentResponse },
    errors: [projectNotFound, environmentNotFound, nothingDeployed, deploymentInProgress, accountSuspended],
    idempotent: true,
    replay: {
      activity: "deployment.restarted",
      render: async ({ actor, made: [{ id }] }) =>
        toDeployment(app, await getDeployment(app, actor, String(id))),
    },
    handler: async ({ actor, params, query }) => {
      const found = await getEnvironment(app, actor, params.project_id, query.environment_id);
      const of = { projectId: found.project.id, environmentId: found.environment.id };
      return toDeployment(app, await restart(app, actor, of));
    },
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: ofProject,
    operationId: "listDeployments",
    summary: "List a project's deployments",
    description: "Returns the newest first.",
    scope: "platform:read",
    params: ProjectParams,
    query: ListQuery,
    responses: { 200: DeploymentListResponse },
    errors: [projectNotFound, environmentNotFound],
    handler: async ({ actor, params, query: { skip, limit, environment_id, status } }) => {
      const { id } = await getProject(app, actor, params.project_id);
      const environmentId = await filterOf(app, actor, id, environment_id);
      const { items, total } = await listDeployments(app.db, id, { skip, limit, environmentId, status });
      return { items: items.map((row) => toDeployment(app, row)), total, skip, limit };
    },
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/projects/{project_id}/deployment-stats",
    operationId: "getDeploymentStats",
    summary: "Get deployment statistics",
    description: "Returns the number of deployments by outcome, the success rate and the average duration.",
    scope: "platform:read",
    params: ProjectParams,
    query: StatsQuery,
    responses: { 200: DeploymentStats },
    errors: [projectNotFound, environmentNotFound],
    handler: async ({ actor, params, query }) => {
      const { id } = await getProject(app, actor, params.project_id);
      return toStats(
        app,
        await deploymentStats(app, id, await filterOf(app, actor, id, query.environment_id)),
      );
    },
  }),
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "getDeployment",
    summary: "Get a deployment with its steps",
    scope: "platform:read",
    params: DeploymentParams,
    responses: { 200: DeploymentResponse },
    errors: [deploymentNotFound],
    handler: async ({ actor, params }) =>
      toDeployment(app, await getDeployment(app, actor, params.deployment_id)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/logs`,
    operationId: "readDeploymentLogs",
    summary: "Read a deployment's log",
    description:
      "Returns the output by step. With `follow=true` (an extension) the response is a stream of server-sent events, in the order of the output. Each `data:` line is a DeploymentLogEvent. Send the last `id:` as `Last-Event-ID` to resume. The last event has the final status.",
    scope: "platform:read",
    params: DeploymentParams,
    query: LogsQuery,
    responses: { 200: z.array(DeploymentLogEntry) },
    events: DeploymentLogEvent,
    errors: [deploymentNotFound],
    handler: async ({ actor, params, query, request, reply }) =>
      query.follow
        ? follow(app, actor, params.deployment_id, request, reply)
        : (await readLogs(app, actor, params.deployment_id)).map(toLogEntry),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/build-log`,
    operationId: "readBuildLog",
    summary: "Read a deployment's build log",
    description: "Returns the output of the build as one text.",
    scope: "platform:read",
    params: DeploymentParams,
    responses: { 200: BuildLog },
    errors: [deploymentNotFound],
    handler: ({ actor, params }) => readBuildLog(app, actor, params.deployment_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/rollback`,
    operationId: "rollBackDeployment",
    summary: "Roll back to a deployment",
    description:
      "Creates a deployment with the same image, command and port, and with the environment's current variables. Only a deployment that was live can be restored, else 409 `not_rollbackable`. If its image is deleted, the response is 409 `image_pruned`; send `allow_rebuild=true` to build it again, or to pull it again by its digest. Requires plan pro or team.",
    scope: "platform:write",
    params: DeploymentParams,
    query: RollbackQuery,
    responses: { 200: DeploymentResponse },
    errors: [
      deploymentNotFound,
      notRollbackable,
      imagePruned,
      deploymentInProgress,
      planLimit,
      accountSuspended,
    ],
    idempotent: true,
    replay: {
      activity: "deployment.rolled_back",
      render: async ({ actor, made: [{ id }] }) =>
        toDeployment(app, await getDeployment(app, actor, String(id))),
    },
    handler: async ({ actor, params, query }) => {
      const options = { allowRebuild: query.allow_rebuild, restoreEnv: query.restore_env };
      return toDeployment(app, await rollback(app, images, actor, params.deployment_id, options));
    },
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/cancel`,
    operationId: "cancelDeployment",
    whileSuspended: true,
    summary: "Cancel a deployment",
    description:
      "Cancels a queued deployment at once. Cancels a running one within moments; poll it. Once a deployment switches to live or has failed, the response is 409 `deployment_not_cancellable`.",
    scope: "platform:write",
    extension: true,
    params: DeploymentParams,
    responses: { 200: DeploymentResponse },
    errors: [deploymentNotFound, deploymentNotCancellable],
    handler: async ({ actor, params }) =>
      toDeployment(app, await cancelDeployment(app, actor, params.deployment_id)),
  }),
];

async function follow(
  app: App,
  actor: Actor,
  id: string,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  await getDeployment(app, actor, id);
  const events = openEventStream(request, reply);
  const after = /^\d{1,15}$/.test(events.lastEventId ?? "") ? Number(events.lastEventId) : 0;
  for await (const news of followDeployment(app, id, events.signal, after)) {
    await events.send({ id: news.seq, data: toLogEvent(news) });
  }
  events.close();
  return streamed;
}

/** Returns the environment filter of a list. Throws if the environment does not belong to the project. */
async function filterOf(
  app: App,
  actor: Actor,
  projectId: string,
  environmentId: string | undefined,
): Promise<string | undefined> {
  if (environmentId === undefined) return undefined;
  return (await getEnvironment(app, actor, projectId, environmentId)).environment.id;
}
