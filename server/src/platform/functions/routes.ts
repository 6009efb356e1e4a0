import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { accountSuspended, planLimit, workspaceNotFound } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { VariablesResponse } from "../environments/schema.ts";
import {
  functionBusy,
  functionCrashed,
  functionNotDeployed,
  functionTimeout,
  functionUnavailable,
  responseTooLarge,
} from "../instances/errors.ts";
import { pageQuery } from "../input/schema.ts";
import { nameTaken } from "../projects/errors.ts";
import { checkName } from "../projects/names.ts";
import { NameCheck } from "../projects/schema.ts";
import { onFunction } from "../audit-targets.ts";
import { createFunction } from "./create.ts";
import { deleteFunction } from "./delete.ts";
import { deployFunction } from "./deploy/queue-deploy.ts";
import {
  bodyTooLarge,
  deployInProgress,
  functionDeployed,
  functionNotFound,
  imagePruned,
  noApiKey,
  versionNotFound,
  versionNotRollbackable,
} from "./errors.ts";
import { get, list, readVariables } from "./functions.ts";
import { invokeFunction } from "./invoke.ts";
import { followLogs, functionMetrics, readLogs } from "./monitoring.ts";
import type { FunctionParts } from "./parts.ts";
import { rollBackFunction } from "./versions/rollback.ts";
import {
  bodyLimit,
  DeployQuery,
  FunctionBuildEvent,
  FunctionBuildLog,
  FunctionCreate,
  FunctionListResponse,
  FunctionLogLine,
  FunctionLogs,
  FunctionLogsQuery,
  FunctionMetrics,
  FunctionMetricsQuery,
  FunctionParams,
  FunctionResponse,
  FunctionUpdate,
  FunctionVersion,
  FunctionVersionSummary,
  FunctionWithKey,
  invokeBodyLimit,
  InvokeRequest,
  InvokeResponse,
  readOnlyFields,
  toBuildEntry,
  toBuildEvent,
  toVersion,
  toVersionSummary,
  VersionLogsQuery,
  VersionParams,
  VersionRollbackQuery,
} from "./schema.ts";
import { rotateKey, updateFunction } from "./update.ts";
import { followVersion, getVersion, getVersions, readVersionLog } from "./versions/versions.ts";

const common = { api: "platform", tag: "Functions" } as const;
const path = "/api/v1/functions/{function_id}";

const versionPath = `${path}/versions/{version_id}`;

const whichVersion = (params: { function_id: string; version_id: string }) => ({
  id: params.function_id,
  versionId: params.version_id,
});

export const functionRoutes = (app: App, parts: FunctionParts): Route[] => [
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/functions",
    operationId: "listFunctions",
    summary: "List functions",
    description: "Returns the newest first.",
    scope: "platform:read",
    query: z.object({
      ...pageQuery,
      workspace: z
        .string()
        .max(64)
        .optional()
        .describe("`personal` or a team id. Default: all workspaces that the caller reaches."),
    }),
    responses: { 200: FunctionListResponse },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => list(app, parts, actor, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/api/v1/functions",
    operationId: "createFunction",
    summary: "Create a function",
    description:
      "The function serves no requests before its first deploy. With `auth_mode: api_key` the response contains the key, only this once.",
    scope: "platform:write",
    body: FunctionCreate,
    bodyLimit,
    responses: { 201: FunctionWithKey },
    errors: [nameTaken, planLimit, accountSuspended, workspaceNotFound],
    idempotent: true,
    replay: {
      activity: "function.created",
      render: async ({ actor, made: [{ id }] }) => ({
        ...(await get(app, parts, actor, String(id))),
        api_key: null,
      }),
    },
    secretFields: ["api_key"],
    handler: ({ actor, body }) => createFunction(app, parts, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/api/v1/functions/check-name/{name}",
    operationId: "checkFunctionName",
    summary: "Check a function name",
    description:
      "Returns whether a new function can have the name. Names are unique over all projects and functions.",
    scope: "platform:read",
    params: z.object({
      name: z
        .string()
        .max(100)
        .describe("Name to check. An invalid one is reported by `reason`, not by an error."),
    }),
    responses: { 200: NameCheck },
    handler: ({ params }) => checkName(app, params.name),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path,
    operationId: "getFunction",
    summary: "Get a function",
    scope: "platform:read",
    params: FunctionParams,
    responses: { 200: FunctionResponse },
    errors: [functionNotFound],
    handler: ({ actor, params }) => get(app, parts, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "PATCH",
    path,
    operationId: "updateFunction",
    summary: "Update a function",
    description:
      "Code and dependencies apply at the next deploy. Variables, `timeout_seconds` and `memory_mb` apply when an instance next starts. Other fields apply at once.",
    scope: "platform:write",
    params: FunctionParams,
    body: FunctionUpdate,
    bodyLimit,
    readOnlyFields,
    responses: { 200: FunctionWithKey },
    errors: [functionNotFound, functionDeployed, nameTaken, planLimit, accountSuspended, workspaceNotFound],
    handler: ({ actor, params, body }) => updateFunction(app, parts, actor, params.function_id, body),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path,
    operationId: "deleteFunction",
    summary: "Delete a function",
    description:
      "Takes effect at once, and frees the name. The server removes instances and images within seconds.",
    scope: "platform:write",
    params: FunctionParams,
    responses: { 204: null },
    errors: [functionNotFound],
    handler: ({ actor, params }) => deleteFunction(app, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/deploy`,
    operationId: "deployFunction",
    summary: "Deploy a function",
    description:
      "Installs the dependencies, loads the handler once as a test, and makes the new version live. The previous version serves requests until then. It stays live if the deploy fails; `error` contains the reason. Responds when the deploy ends, or after two minutes with `status: building`.",
    scope: "platform:write",
    params: FunctionParams,
    query: DeployQuery,
    responses: { 200: FunctionResponse },
    errors: [functionNotFound, deployInProgress, accountSuspended],
    idempotent: true,
    replay: {
      activity: "function.deploy_requested",
      render: ({ actor, made: [{ id }] }) => get(app, parts, actor, String(id)),
    },
    handler: ({ actor, params, query }) => deployFunction(app, parts, actor, params.function_id, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/versions`,
    operationId: "listFunctionVersions",
    summary: "List a function's versions",
    description:
      "Returns the newest first. Each deploy and each rollback creates a version. The newest 20 versions are kept, with their build logs. A rollback to a version with `image_kept` needs no build.",
    scope: "platform:read",
    extension: true,
    params: FunctionParams,
    responses: { 200: z.array(FunctionVersionSummary) },
    errors: [functionNotFound],
    handler: async ({ actor, params }) =>
      (await getVersions(app, actor, params.function_id)).map(toVersionSummary),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: versionPath,
    operationId: "getFunctionVersion",
    summary: "Get a function version",
    description: "Returns the version with its code.",
    scope: "platform:read",
    extension: true,
    params: VersionParams,
    responses: { 200: FunctionVersion },
    errors: [functionNotFound, versionNotFound],
    handler: async ({ actor, params }) => toVersion(await getVersion(app, actor, whichVersion(params))),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${versionPath}/logs`,
    operationId: "getFunctionVersionLogs",
    summary: "Read a version's build log",
    description:
      "Returns the output of the build and of the first start. With `follow=true` the response is a stream of server-sent events. Each `data:` line is a FunctionBuildEvent. Send the last `id:` as `Last-Event-ID` to resume. The last event has the final status.",
    scope: "platform:read",
    extension: true,
    params: VersionParams,
    query: VersionLogsQuery,
    responses: { 200: FunctionBuildLog },
    events: FunctionBuildEvent,
    errors: [functionNotFound, versionNotFound],
    handler: async ({ actor, params, query, request, reply }) => {
      const which = whichVersion(params);
      if (query.follow) return streamBuild(app, await getVersion(app, actor, which), request, reply);
      const { entries, truncated } = await readVersionLog(app, actor, which);
      return { entries: entries.map(toBuildEntry), truncated };
    },
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${versionPath}/rollback`,
    operationId: "rollBackFunction",
    summary: "Roll a function back",
    description:
      "Creates a new version with the same code and image, tests it, and makes it live. The current variables, limits and key apply. The stored code does not change, so `pending_deploy` is true if it differs. Requires plan pro or team.",
    scope: "platform:write",
    extension: true,
    params: VersionParams,
    query: VersionRollbackQuery,
    responses: { 200: FunctionResponse },
    errors: [
      functionNotFound,
      versionNotFound,
      versionNotRollbackable,
      imagePruned,
      deployInProgress,
      planLimit,
      accountSuspended,
    ],
    idempotent: true,
    replay: {
      activity: "function.rolled_back",
      render: ({ actor, made: [{ id }] }) => get(app, parts, actor, String(id)),
    },
    handler: ({ actor, params, query: { wait, allow_rebuild: allowRebuild } }) =>
      rollBackFunction(app, parts, actor, whichVersion(params), { wait, allowRebuild }),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/invoke`,
    operationId: "invokeFunction",
    summary: "Invoke a function",
    description:
      "Sends a request to the live version, and returns the function's response. Needs no function key. The HTTP status is 200 whenever the function responds; `status` contains the function's own status, errors included.",
    scope: "platform:write",
    params: FunctionParams,
    body: InvokeRequest,
    bodyLimit: invokeBodyLimit,
    responses: { 200: InvokeResponse },
    errors: [
      functionNotFound,
      functionNotDeployed,
      bodyTooLarge,
      functionBusy,
      functionUnavailable,
      functionTimeout,
      functionCrashed,
      responseTooLarge,
    ],
    idempotent: true,
    handler: ({ actor, params, body, request, reply }) =>
      abortOnDisconnect(request, reply, (signal) =>
        invokeFunction(app, parts, actor, { id: params.function_id, input: body, signal }),
      ),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/logs`,
    operationId: "getFunctionLogs",
    summary: "Read a function's logs",
    description:
      "Returns what the function wrote to stdout and stderr. The last 8 MiB are kept across deploys, crashes and sleep. With `follow=true` the response is a stream of server-sent events. Each `data:` line is a FunctionLogLine.",
    scope: "platform:read",
    params: FunctionParams,
    query: FunctionLogsQuery,
    responses: { 200: FunctionLogs },
    events: FunctionLogLine,
    errors: [functionNotFound],
    handler: (input) =>
      input.query.follow
        ? stream(app, parts, input)
        : readLogs(app, parts, input.actor, input.params.function_id, input.query.lines),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/metrics`,
    operationId: "getFunctionMetrics",
    summary: "Get a function's metrics",
    description:
      "Returns requests, errors, latency, and the number and duration of wakes. Latency runs from the request's headers to the response's headers, wakes included. Percentiles are accurate to 1.6 %.",
    scope: "platform:read",
    params: FunctionParams,
    query: FunctionMetricsQuery,
    responses: { 200: FunctionMetrics },
    errors: [functionNotFound],
    handler: ({ actor, params, query }) => functionMetrics(app, actor, params.function_id, query.period),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: `${path}/env-vars`,
    operationId: "getFunctionVariables",
    summary: "Get a function's variables",
    description: "Returns the decrypted values.",
    scope: "platform:read",
    params: FunctionParams,
    responses: { 200: VariablesResponse },
    errors: [functionNotFound],
    audit: { ...onFunction, action: "variables.read" },
    handler: ({ actor, params }) => readVariables(app, actor, params.function_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: `${path}/rotate-api-key`,
    operationId: "rotateFunctionKey",
    needsSecrets: true,
    summary: "Rotate a function's API key",
    description: "The previous key stops working at once. The response contains the new key, only this once.",
    scope: "platform:write",
    params: FunctionParams,
    responses: { 200: FunctionWithKey },
    errors: [functionNotFound, noApiKey, accountSuspended],
    handler: ({ actor, params }) => rotateKey(app, parts, actor, params.function_id),
  }),
];

/**
 * Runs work, and aborts it when the client disconnects. With an idempotency key the client may read the response later,
 * so the work continues.
 */
async function abortOnDisconnect<T>(
  request: FastifyRequest,
  reply: FastifyReply,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const left = new AbortController();
  if (request.headers["idempotency-key"] !== undefined) return work(left.signal);
  const leave = () => left.abort(new Error("the client disconnected"));
  reply.raw.once("close", leave);
  try {
    return await work(left.signal);
  } finally {
    reply.raw.off("close", leave);
  }
}

async function stream(
  app: App,
  parts: FunctionParts,
  input: {
    actor: Actor;
    params: { function_id: string };
    query: { lines: number };
    request: FastifyRequest;
    reply: FastifyReply;
  },
): Promise<typeof streamed> {
  const { actor, params, query, request, reply } = input;
  const last = [request.headers["last-event-id"]].flat()[0] ?? "";
  const after = /^\d{1,15}$/.test(last) ? Number(last) : null;
  const which = { id: params.function_id, count: query.lines, after };
  const follow = await followLogs(app, parts, actor, which);
  const events = openEventStream(request, reply);
  for await (const event of follow(events.signal)) await events.send(event);
  events.close();
  return streamed;
}

async function streamBuild(
  app: App,
  { id }: { id: string },
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  const events = openEventStream(request, reply);
  const after = /^\d{1,15}$/.test(events.lastEventId ?? "") ? Number(events.lastEventId) : 0;
  for await (const news of followVersion(app, id, events.signal, after)) {
    await events.send({ id: news.seq, data: toBuildEvent(news) });
  }
  events.close();
  return streamed;
}
