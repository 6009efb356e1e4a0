import type { FastifyReply, FastifyRequest } from "fastify";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/sse.ts";
import { machineErrors, noCapacity } from "#machines/errors.ts";
import { environmentNotFound } from "../environments/errors.ts";
import { projectNotFound } from "../projects/errors.ts";
import type { Apps } from "./apps.ts";
import { nothingDeployed, sleepDuringDeployment, wakeFailed } from "./errors.ts";
import { followLogs, putToSleep, readHealth, readLogs, readStats, wakeUp, type Which } from "./monitoring.ts";
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
    summary: "What an app uses: CPU, memory, network",
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
    summary: "What an app wrote to stdout and stderr",
    description:
      "The last 8 MiB of an environment are kept, over deployments, crashes and sleep. With `follow=true` it answers server-sent events whose `data:` lines are AppLogLine objects.",
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
    summary: "Whether an app runs, since when, and how often it was started again",
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
      "It is held still, and its memory is freed after a while; the next request, or wake, brings it back. One that is asleep stays so.",
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
    description: "It answers once the app listens. One that is awake stays so.",
    scope: "platform:write",
    query: AppQuery,
    responses: { 200: ProcessHealth },
    errors: [...found, nothingDeployed, wakeFailed, noCapacity, ...machineErrors],
    handler: (input) => wakeUp(apps, which(input)),
  }),
];

function which(input: {
  actor: Which["actor"];
  params: { project_id: string };
  query: { environment_id?: string | undefined };
}): Which {
  const { actor, params, query } = input;
  return { actor, projectId: params.project_id, environmentId: query.environment_id };
}

async function stream(
  apps: Apps,
  app: Which,
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
