import type { FastifyReply, FastifyRequest } from "fastify";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { onSandbox } from "../audit-target.ts";
import { runningErrors } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { runBuffered, startStreamed } from "./code.ts";
import { createContext, deleteContext, findBegun, listContexts, restartContext } from "./contexts.ts";
import {
  contextBusy,
  contextLimitReached,
  contextNotFound,
  interpreterFailed,
  interpreterOutdated,
  interpreterUnavailable,
} from "./errors.ts";
import {
  Code,
  CodeContext,
  CodeContextList,
  CodeEvent,
  CodeResult,
  ContextCreate,
  ContextParams,
} from "./schema.ts";

const common = { api: "sandbox", tag: "Code" } as const;
const errors = [
  ...runningErrors,
  ...machineErrors,
  tooManyProcesses,
  interpreterUnavailable,
  interpreterFailed,
] as const;

export const codeRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/code",
    operationId: "runCode",
    summary: "Run code in a persistent kernel",
    description:
      "Variables persist in the context between cells. Cells of one context run one after another; contexts run in parallel. If a cell raises an exception, the status is still 200, and `error` contains the exception. With `stream: true`, the response is server-sent events: `stream`, `result` and `error`, and `done` at the end.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: Code,
    bodyLimit: 8 * 1024 ** 2,
    responses: { 200: CodeResult },
    events: CodeEvent,
    errors: [...errors, interpreterOutdated, contextNotFound, contextBusy, contextLimitReached],
    idempotent: (body) => !body.stream,
    audit: { ...onSandbox, action: "code.executed", detail: ({ body }) => ({ language: body.language }) },
    handler: ({ actor, params, body, request, reply }) =>
      body.stream
        ? stream(app, actor, params.id, body, request, reply)
        : runBuffered(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/code/contexts",
    operationId: "createCodeContext",
    summary: "Create a kernel context",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: ContextCreate,
    responses: { 201: CodeContext },
    errors: [...errors, interpreterOutdated, contextLimitReached],
    idempotent: true,
    replay: {
      render: ({ actor, params, made: [{ id }] }) => findBegun(app, actor, params.id, String(id)),
    },
    handler: ({ actor, params, body, note }) =>
      createContext(app, actor, params.id, body, (context) => note(app.db, { id: context })),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/code/contexts",
    operationId: "listCodeContexts",
    summary: "List kernel contexts",
    scope: "sandboxes:read",
    params: SandboxParams,
    responses: { 200: CodeContextList },
    errors,
    handler: ({ actor, params }) => listContexts(app, actor, params.id),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/code/contexts/{ctx}/restart",
    operationId: "restartCodeContext",
    summary: "Restart a kernel context",
    description:
      "Replaces the kernel under the same id. Variables are lost and the running cell ends; waiting cells run in the new kernel.",
    scope: "sandboxes:write",
    params: ContextParams,
    responses: { 200: CodeContext },
    errors: [...errors, contextNotFound],
    handler: ({ actor, params }) => restartContext(app, actor, params.id, params.ctx),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}/code/contexts/{ctx}",
    operationId: "deleteCodeContext",
    whileSuspended: false,
    summary: "Delete a kernel context",
    description:
      "Stops the kernel and returns the context as it was before. A default context is created again on its next use.",
    scope: "sandboxes:write",
    params: ContextParams,
    responses: { 200: CodeContext },
    errors: [...errors, contextNotFound],
    handler: ({ actor, params }) => deleteContext(app, actor, params.id, params.ctx),
  }),
];

async function stream(
  app: App,
  actor: Actor,
  id: string,
  body: Code,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  // A cell may wait long for its kernel. A caller who disconnects during this wait leaves the queue.
  const waiting = new AbortController();
  const leave = (): void => waiting.abort();
  reply.raw.once("close", leave);
  const { events, stop } = await startStreamed(app, actor, id, body, waiting.signal);
  reply.raw.off("close", leave);
  if (waiting.signal.aborted) stop();
  const sse = openEventStream(request, reply);
  sse.signal.addEventListener("abort", stop, { once: true });
  for await (const event of events) await sse.send(event);
  sse.close();
  return streamed;
}
