import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/sse.ts";
import { execFailed, machineErrors, tooManyProcesses } from "#machines/errors.ts";
import { ExecFrame } from "../exec/schema.ts";
import { onSandbox } from "../audited.ts";
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
      "It runs on when the caller goes and when the server restarts; ask for its record and output later.",
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
    query: z.strictObject({
      cursor: z.string().max(2048).optional(),
      limit: z.int().min(1).max(100).default(50),
    }),
    responses: { 200: CommandList },
    errors: [...readErrors, ...machineErrors],
    handler: ({ actor, params, query }) => list(app, actor, params.id, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/commands/{cmd}",
    operationId: "getCommand",
    summary: "Poll a background command",
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
      "SIGTERM to its process group now, SIGKILL after 5 s. On a command that ended it changes nothing and answers the same.",
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
    summary: "Output of a background command",
    description:
      "The last 16 MiB are kept. With `follow=true` it answers server-sent events whose `data:` lines are ExecFrame objects and whose `id:` is the offset to go on from; `Last-Event-ID` takes the place of `offset`.",
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

/** Where a reader who comes back goes on, else what was asked for. */
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
