import type { FastifyReply, FastifyRequest } from "fastify";
import type { Actor } from "#accounts/actor.ts";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import {
  type Answer,
  answer,
  defineRoute,
  type Route,
  type RouteInput,
  streamed,
} from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { AgentParams } from "../agents/schema.ts";
import { agentNotFound, invalidField, versionNotFound } from "../errors.ts";
import {
  historyExists,
  sessionCapReached,
  sessionEnded,
  sessionFull,
  sessionNotFound,
} from "../sessions/errors.ts";
import { parseTraceparent } from "../tracing/traceparent.ts";
import { sessionParking } from "../vm/errors.ts";
import { cancel } from "./api/cancel.ts";
import {
  agentArchived,
  agentPaused,
  approvalPending,
  credentialMissing,
  promptExpired,
  runNotFound,
  runNotResumable,
  sessionBusy,
  sessionPinned,
  stepNotFound,
  tooManyRuns,
} from "./api/run-errors.ts";
import { follow } from "./api/follow.ts";
import { invoke, type Trigger } from "./api/invoke.ts";
import { get, getOutcome, getRun, list } from "./api/read.ts";
import { resume } from "./api/resume.ts";
import type { RunExecutor } from "./engine/run-executor.ts";
import {
  Invoke,
  InvokeQuery,
  InvokeResponse,
  Run,
  RunEvent,
  RunList,
  RunParams,
  RunQuery,
  StepParams,
  StepPromptView,
  StreamQuery,
  toInvokeResponse,
} from "./schema.ts";
import { isOver } from "./states.ts";
import { getStepPrompt } from "./api/step-prompt.ts";
import { toUi } from "./api/ui.ts";

const common = { api: "agent", tag: "Runs" } as const;

export const runRoutes = (app: App, runs: RunExecutor): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agents/{agent}/invoke",
    operationId: "invokeAgent",
    summary: "Run an agent",
    description:
      "Returns 200 with the outcome if the run ends or waits for a person within `wait_s`, else 202. With `stream: true` the response streams the run's events. Closing the connection does not stop the run. A repeat with the same `Idempotency-Key` and body streams the same run from its start, or after `Last-Event-ID`. The first stream may still be open. A `traceparent` header adds the run to that trace.",
    scope: "agents:invoke",
    params: AgentParams,
    query: InvokeQuery,
    body: Invoke,
    // The limit allows for images and files, which arrive in base64.
    bodyLimit: 16 * 1024 ** 2,
    responses: { 200: InvokeResponse, 202: InvokeResponse },
    events: RunEvent,
    errors: [
      agentNotFound,
      versionNotFound,
      sessionNotFound,
      invalidField,
      accountSuspended,
      agentArchived,
      agentPaused,
      sessionBusy,
      sessionPinned,
      sessionParking,
      approvalPending,
      planLimit,
      sessionCapReached,
      historyExists,
      sessionFull,
      sessionEnded,
      credentialMissing,
      tooManyRuns,
    ],
    rateLimit: "agent_invoke",
    idempotent: true,
    replay: {
      keeps: ["run_id"],
      render: ({ actor, made: [{ run_id }] }) => outcome(app, runs, actor, String(run_id)),
      stream: ({ actor, query, request, reply, made: [{ run_id }] }) =>
        stream(app, runs, { actor, id: String(run_id), format: query.format, request, reply }),
    },
    handler: ({ actor, params, query, body, request, reply, note }) =>
      body.stream
        ? invokeStreamed(app, runs, {
            actor,
            agent: params.agent,
            format: query.format,
            body,
            request,
            reply,
            note,
          })
        : invokeAndWait(app, runs, { actor, agent: params.agent, body, request, note }),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/runs",
    operationId: "listAgentRuns",
    summary: "List runs",
    scope: "agents:read",
    extension: true,
    query: RunQuery,
    responses: { 200: RunList },
    errors: [agentNotFound, invalidField],
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/runs/{run_id}",
    operationId: "getAgentRun",
    summary: "Get a run",
    scope: "agents:invoke",
    params: RunParams,
    responses: { 200: Run },
    errors: [runNotFound],
    handler: ({ actor, params }) => get(app, runs, actor, params.run_id),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/runs/{run_id}/steps/{step}/prompt",
    operationId: "getAgentStepPrompt",
    summary: "Get the prompt of a step",
    description:
      "Returns the system message, the messages and the tools that the model got in a complete step, without its reasoning. The prompt expires an hour after the run's end, or when the session ends. Then the response is 410 `prompt_expired`.",
    scope: "agents:read",
    extension: true,
    params: StepParams,
    responses: { 200: StepPromptView },
    errors: [runNotFound, stepNotFound, promptExpired, versionNotFound],
    handler: ({ actor, params }) => getStepPrompt(app, actor, params.run_id, params.step),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/agents/runs/{run_id}/stream",
    operationId: "streamAgentRun",
    summary: "Stream a run's events",
    description:
      "The `id` of a frame is the `seq` of its event. With `Last-Event-ID: n` the stream continues after event n, for an ended run too. The stream ends after `run.completed` or `run.failed`.",
    scope: "agents:invoke",
    params: RunParams,
    query: StreamQuery,
    responses: {
      200: { contentType: "text/event-stream", description: "AgentRunEvent objects.", schema: RunEvent },
    },
    errors: [runNotFound],
    handler: ({ actor, params, query, request, reply }) =>
      stream(app, runs, { actor, id: params.run_id, format: query.format, request, reply }),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agents/runs/{run_id}/resume",
    operationId: "resumeAgentRun",
    summary: "Resume a failed run",
    description:
      "Continues the same run from its last complete step. Finished tool calls are not repeated, and the run gets the version's limits again. The stream continues with `run.resumed` after `run.failed`. A run can be resumed within an hour of its failure, in a live session without a later run. Otherwise the response is 409 `run_not_resumable` or 410 `session_ended`. An active run is returned unchanged.",
    scope: "agents:invoke",
    extension: true,
    params: RunParams,
    responses: { 200: Run },
    errors: [
      runNotFound,
      runNotResumable,
      agentNotFound,
      agentArchived,
      agentPaused,
      accountSuspended,
      sessionNotFound,
      sessionEnded,
      sessionParking,
      tooManyRuns,
    ],
    rateLimit: "agent_invoke",
    handler: ({ actor, params }) => resume(app, runs, actor, params.run_id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/agents/runs/{run_id}/cancel",
    operationId: "cancelAgentRun",
    whileSuspended: true,
    summary: "Cancel a run",
    description:
      "Sets `status` to `failed` and `error_code` to `cancelled`. A run that has ended is returned unchanged.",
    scope: "agents:invoke",
    extension: true,
    params: RunParams,
    responses: { 200: Run },
    errors: [runNotFound],
    handler: ({ actor, params }) => cancel(app, runs, actor, params.run_id),
  }),
];

async function invokeAndWait(
  app: App,
  runs: RunExecutor,
  {
    actor,
    agent,
    body,
    request,
    note,
  }: { actor: Actor; agent: string; body: Invoke } & Pick<
    RouteInput<unknown, unknown, unknown>,
    "request" | "note"
  >,
): Promise<Answer> {
  const id = await invoke(app, runs, actor, agent, body, byApi(request, note));
  await runs.waitForOutcome(id, body.wait_s * 1000);
  return outcome(app, runs, actor, id);
}

async function invokeStreamed(
  app: App,
  runs: RunExecutor,
  {
    actor,
    agent,
    format,
    body,
    note,
    ...http
  }: {
    actor: Actor;
    agent: string;
    format: "events" | "ui";
    body: Invoke;
    request: FastifyRequest;
    reply: FastifyReply;
    note: RouteInput<unknown, unknown, unknown>["note"];
  },
): Promise<typeof streamed> {
  const id = await invoke(app, runs, actor, agent, body, byApi(http.request, note));
  return stream(app, runs, { actor, id, format, isNew: true, ...http });
}

function byApi({ headers }: FastifyRequest, note: RouteInput<unknown, unknown, unknown>["note"]): Trigger {
  // With a key, a retry gets the same run and starts no other, both during the run and after a crash of this server.
  const isKeyed = headers["idempotency-key"] !== undefined;
  return {
    type: "api",
    id: null,
    traceparent: parseTraceparent(headers["traceparent"]),
    within: isKeyed ? (tx, run) => note(tx, { run_id: run.id }) : undefined,
  };
}

async function outcome(app: App, runs: RunExecutor, actor: Actor, id: string): Promise<Answer> {
  const { row, waiting } = await getOutcome(app, runs, actor, id);
  const status = isOver(row.status) || row.status === "pending_approval" ? 200 : 202;
  return answer(status, toInvokeResponse(row, { waiting, now: app.clock.now() }));
}

async function stream(
  app: App,
  runs: RunExecutor,
  options: {
    actor: Actor;
    id: string;
    format: "events" | "ui";
    isNew?: boolean;
    request: FastifyRequest;
    reply: FastifyReply;
  },
): Promise<typeof streamed> {
  const { actor, id, format, isNew, request, reply } = options;
  const run = await getRun(app, actor, id);
  const isUi = format === "ui";
  if (isUi) reply.header("x-vercel-ai-ui-message-stream", "v1");
  const sse = openEventStream(request, reply, { retryMs: 2000 });
  // The client cannot have seen events of a new run, so its `Last-Event-ID` is ignored.
  const seen = isNew ? 0 : Number(/^\d{1,9}$/.exec(sse.lastEventId ?? "")?.[0] ?? 0);
  if (!isUi) {
    for await (const event of follow(app, runs, run, seen, sse.signal))
      await sse.send({ id: event.seq, event: event.type, data: event });
  } else {
    // The events before that position are converted too, because they determine which parts are open at the position.
    for await (const { seq, chunks } of toUi(follow(app, runs, run, 0, sse.signal))) {
      if (seq <= seen) continue;
      for (const [index, chunk] of chunks.entries())
        await sse.send(index === chunks.length - 1 ? { id: seq, data: chunk } : { data: chunk });
    }
    await sse.send({ data: "[DONE]" });
  }
  sse.close();
  return streamed;
}
