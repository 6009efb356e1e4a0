import type { FastifyReply, FastifyRequest } from "fastify";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { execFailed, machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { onSandbox } from "../audit-target.ts";
import { runningErrors } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { runBuffered, startStreamed } from "./exec.ts";
import { Exec, ExecFrame, ExecResult } from "./schema.ts";

export const execRoutes = (app: App): Route[] => [
  defineRoute({
    api: "sandbox",
    method: "POST",
    path: "/v1/sandboxes/{id}/exec",
    operationId: "execCommand",
    tag: "Exec",
    summary: "Run a command",
    description:
      "Returns the result when the command ends, with status 200 even if `exit_code` is not 0. With `stream: true`, the response is server-sent events whose `data:` lines are ExecFrame objects.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: Exec,
    bodyLimit: 24 * 1024 ** 2,
    responses: { 200: ExecResult },
    events: ExecFrame,
    errors: [...runningErrors, ...machineErrors, execFailed, tooManyProcesses],
    idempotent: (body) => !body.stream,
    audit: { ...onSandbox, action: "command.executed", detail: ({ body }) => ({ stream: body.stream }) },
    handler: ({ actor, params, body, request, reply }) =>
      body.stream
        ? stream(app, actor, params.id, body, request, reply)
        : runBuffered(app, actor, params.id, body),
  }),
];

async function stream(
  app: App,
  actor: Actor,
  id: string,
  body: Exec,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  const { frames, stop } = await startStreamed(app, actor, id, body);
  const events = openEventStream(request, reply);
  events.signal.addEventListener("abort", stop, { once: true });
  for await (const frame of frames) await events.send({ data: frame });
  events.close();
  return streamed;
}
