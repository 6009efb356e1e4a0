import type { FastifyReply, FastifyRequest } from "fastify";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { machineErrors, noCapacity } from "#machines/errors.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import type { Apps } from "./apps.ts";
import { nothingDeployed, sleepDuringDeployment, wakeFailed } from "./errors.ts";
import {
  followLogs,
  putToSleep,
  readHealth,
  readLogs,
  readStats,
  wakeUp,
  type AppSelector,
} from "./monitoring.ts";
import { ProcessHealth, AppLogLine, AppLogs, AppParams, AppQuery, AppStats, LogsQuery } from "./schema.ts";

const common = { api: "platform", tag: "Monitoring", params: AppParams } as const;
const path = "/api/v1/projects/{project_id}";
const found = [projectNotFound, environmentNotFound] as const;

export const appRoutes = (apps: Apps): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/stats`,
    operationId: "getProjectStats",
    summary: "Get an app's resource usage",
    description: "Returns CPU, memory and network traffic.",
    scope: "platform:read",
    query: AppQuery,
    responses: { 200: AppStats },
    errors: [...found],
    handler: (input) => readStats(apps, which(input)),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/logs`,
    operationId: "getProjectLogs",
    summary: "Read an app's logs",
    description:
      "Returns what the app wrote to stdout and stderr. The last 8 MiB of each environment are kept across deployments, crashes and sleep. With `follow=true` the response is a stream of server-sent events. Each `data:` line is an AppLogLine.",
    scope: "platform:read",
    query: LogsQuery,
    responses: { 200: AppLogs },
    events: AppLogLine,
    errors: [...found],
    handler: (input) =>
      input.query.follow
        ? stream(apps, which(input), input.query.lines, input.request, input.reply)
        : readLogs(apps, which(input), input.query.lines),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/health`,
    operationId: "getProjectHealth",
    summary: "Get an app's process health",
    description: "Returns the status of the process, its uptime and its number of restarts.",
    scope: "platform:read",
    query: AppQuery,
    responses: { 200: ProcessHealth },
    errors: [...found],
    handler: (input) => readHealth(apps, which(input)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/sleep`,
    operationId: "sleepProject",
    summary: "Put an app to sleep",
    description:
      "Freezes the app. The memory is freed after 15 minutes, unless the operator configured another time. The next request or `wake` resumes it. Does nothing if the app is asleep.",
    scope: "platform:write",
    query: AppQuery,
    responses: { 200: ProcessHealth },
    errors: [...found, nothingDeployed, sleepDuringDeployment, ...machineErrors],
    handler: (input) => putToSleep(apps, which(input)),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/wake`,
    operationId: "wakeProject",
    summary: "Wake an app",
    description:
      "Responds once the app listens on its port. If it does not listen within 30 seconds, the response is 503 `wake_failed`. An app that is awake is not restarted.",
    scope: "platform:write",
    query: AppQuery,
    responses: { 200: ProcessHealth },
    errors: [...found, nothingDeployed, wakeFailed, noCapacity, ...machineErrors],
    handler: (input) => wakeUp(apps, which(input)),
  }),
];

function which(input: {
  actor: AppSelector["actor"];
  params: { project_id: string };
  query: { environment_id?: string | undefined };
}): AppSelector {
  const { actor, params, query } = input;
  return { actor, projectId: params.project_id, environmentId: query.environment_id };
}

async function stream(
  apps: Apps,
  app: AppSelector,
  count: number,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  const last = [request.headers["last-event-id"]].flat()[0] ?? "";
  const after = /^\d{1,15}$/.test(last) ? Number(last) : null;
  const follow = await followLogs(apps, app, { count, after });
  const events = openEventStream(request, reply);
  for await (const event of follow(events.signal)) await events.send(event);
  events.close();
  return streamed;
}
