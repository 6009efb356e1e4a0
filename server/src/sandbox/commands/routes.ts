import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { execFailed, machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { ExecFrame } from "../exec/schema.ts";
import { pageQuery } from "../fields.ts";
import { onSandbox } from "../audit-target.ts";
import { invalidField, readErrors, runningErrors } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { findBegun, getCommand, killCommand, list, startCommand, writeInput } from "./commands.ts";
import { commandNotFound, commandNotReading, outputForgotten } from "./errors.ts";
import { followLogs, readLogs } from "./logs.ts";
import {
  Command,
  CommandInput,
  CommandInputWritten,
  CommandList,
  CommandLogs,
  CommandParams,
  CommandStart,
  LogsQuery,
} from "./schema.ts";

const common = { api: "sandbox", tag: "Commands" } as const;

export const commandRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/commands",
    operationId: "startCommand",
    summary: "Start a background command",
    description:
      "The command keeps running when the client disconnects, when the server restarts, and through a pause. Get its record and output later.",
    scope: "sandboxes:write",
    params: SandboxParams,
    body: CommandStart,
    responses: { 201: Command },
    errors: [...runningErrors, ...machineErrors, execFailed, tooManyProcesses],
    idempotent: true,
    replay: {
      render: ({ actor, params, made }) => findBegun(app, actor, params.id, String(made.at(-1)?.["id"])),
    },
    audit: { ...onSandbox, action: "command.started" },
    handler: ({ actor, params, body, note }) =>
      startCommand(app, actor, params.id, body, (command) => note(app.db, { id: command })),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/commands",
    operationId: "listCommands",
    summary: "List background commands, newest first",
    scope: "sandboxes:read",
    params: SandboxParams,
    query: z.strictObject(pageQuery),
    responses: { 200: CommandList },
    errors: [...readErrors, ...machineErrors],
    handler: ({ actor, params, query }) => list(app, actor, params.id, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/commands/{cmd}",
    operationId: "getCommand",
    summary: "Get a background command",
    scope: "sandboxes:read",
    params: CommandParams,
    responses: { 200: Command },
    errors: [...readErrors, ...machineErrors, commandNotFound],
    handler: ({ actor, params }) => getCommand(app, actor, params.id, params.cmd),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}/commands/{cmd}",
    operationId: "killCommand",
    whileSuspended: false,
    summary: "Kill a background command",
    description:
      "Sends SIGTERM to the process group, and SIGKILL after 5 s. A command that has ended is returned unchanged.",
    scope: "sandboxes:write",
    params: CommandParams,
    responses: { 200: Command },
    errors: [...runningErrors, ...machineErrors, commandNotFound],
    handler: ({ actor, params }) => killCommand(app, actor, params.id, params.cmd),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/commands/{cmd}/logs",
    operationId: "readCommandLogs",
    summary: "Read a background command's output",
    description:
      "The last 16 MiB are kept. With `follow=true`, the response is server-sent events whose `data:` lines are ExecFrame objects. To continue after a disconnect, send the `id:` of the last event as `Last-Event-ID`, which replaces `offset`.",
    scope: "sandboxes:read",
    params: CommandParams,
    query: LogsQuery,
    responses: { 200: CommandLogs },
    events: ExecFrame,
    errors: [...runningErrors, ...machineErrors, commandNotFound, outputForgotten],
    handler: ({ actor, params, query, request, reply }) =>
      query.follow
        ? stream(app, actor, params, offsetOf(request, query), request, reply)
        : readLogs(app, actor, params.id, params.cmd, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/commands/{cmd}/stdin",
    operationId: "writeCommandInput",
    summary: "Write to a background command's input",
    scope: "sandboxes:write",
    extension: true,
    params: CommandParams,
    body: CommandInput,
    responses: { 200: CommandInputWritten },
    errors: [...runningErrors, ...machineErrors, commandNotFound, commandNotReading],
    handler: ({ actor, params, body }) => writeInput(app, actor, params.id, params.cmd, body),
  }),
];

/** Returns the offset of a returning reader (`Last-Event-ID`), or else the requested offset. */
function offsetOf(request: FastifyRequest, query: LogsQuery): number {
  const last = [request.headers["last-event-id"]].flat()[0];
  if (last === undefined || last === "") return query.offset;
  if (!/^\d{1,15}$/.test(last))
    throw invalidField("Last-Event-ID", "must be the id of an event of this stream.");
  return Number(last);
}

async function stream(
  app: App,
  actor: Actor,
  params: z.output<typeof CommandParams>,
  offset: number,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  const follow = await followLogs(app, actor, params.id, params.cmd, offset);
  const events = openEventStream(request, reply);
  for await (const event of follow(events.signal)) await events.send(event);
  events.close();
  return streamed;
}
