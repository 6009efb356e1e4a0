import type { FastifyReply, FastifyRequest } from "fastify";
import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { invalidField } from "../sandboxes/errors.ts";
import { createTemplate, toCreated } from "./create.ts";
import { removeTemplate } from "./delete.ts";
import { tagNotFound, templateLimitReached, templateNotFound, templateNotReady } from "./errors.ts";
import { followLogs, readLogs } from "./logs.ts";
import {
  ListQuery,
  LogsQuery,
  TagParams,
  Template,
  TemplateCreate,
  TemplateList,
  TemplateLogEvent,
  TemplateLogs,
  TemplateParams,
} from "./schema.ts";
import { assignTag, getRow, getTemplate, list, removeTag } from "./templates.ts";

const common = { api: "sandbox", tag: "Templates" } as const;

export const templateRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/templates",
    operationId: "createTemplate",
    summary: "Build a template",
    description:
      "Responds at once with `status: building`. Poll the template, follow its log, or wait for the event `template.build_finished`. A base of your own must be ready. The new image keeps the parts of it that it needs, so you can delete either template. The source is a base with a recipe, a Dockerfile, or an image of a registry. A Dockerfile and an image are built like those of apps, with the same limits and caches; layers of an earlier build are reused.",
    scope: "sandboxes:write",
    body: TemplateCreate,
    responses: { 201: Template },
    errors: [planLimit, accountSuspended, templateLimitReached, templateNotReady],
    idempotent: true,
    replay: {
      activity: "template.created",
      render: async ({ actor, made: [{ id }] }) => toCreated(await getRow(app.db, actor, String(id))),
    },
    handler: ({ actor, body }) => createTemplate(app, actor, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/templates",
    operationId: "listTemplates",
    summary: "List custom templates, newest first",
    scope: "sandboxes:read",
    query: ListQuery,
    responses: { 200: TemplateList },
    handler: ({ actor, query }) => list(app, actor, query),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/templates/{id}",
    operationId: "getTemplate",
    summary: "Get a template",
    scope: "sandboxes:read",
    params: TemplateParams,
    responses: { 200: Template },
    errors: [templateNotFound],
    handler: ({ actor, params }) => getTemplate(app, actor, params.id),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/templates/{id}",
    operationId: "deleteTemplate",
    summary: "Delete a template",
    description:
      "Works in every state and ends a running build. Sandboxes created from the template keep running, and can be paused and resumed.",
    scope: "sandboxes:write",
    params: TemplateParams,
    responses: { 204: null },
    errors: [templateNotFound],
    handler: ({ actor, params }) => removeTemplate(app, actor, params.id),
  }),
  defineRoute({
    ...common,
    method: "PUT",
    path: "/v1/templates/{id}/tags/{tag}",
    operationId: "tagTemplate",
    summary: "Point a tag at a ready build",
    description:
      "Removes the tag from any other build of the same name. A build that is not ready is refused with 409 `template_not_ready`.",
    scope: "sandboxes:write",
    params: TagParams,
    responses: { 200: Template },
    errors: [templateNotFound, templateNotReady],
    handler: ({ actor, params }) => assignTag(app, actor, params.id, params.tag),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/templates/{id}/tags/{tag}",
    operationId: "untagTemplate",
    summary: "Remove a tag",
    scope: "sandboxes:write",
    params: TagParams,
    responses: { 204: null },
    errors: [templateNotFound, tagNotFound],
    handler: ({ actor, params }) => removeTag(app, actor, params.id, params.tag),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/templates/{id}/logs",
    operationId: "readTemplateLogs",
    summary: "Read a template's build log",
    description:
      "With `follow=true`, the response is server-sent events whose `data:` lines are TemplateLogEvent objects. To continue after a disconnect, send the `id:` of the last event as `Last-Event-ID`, which replaces `after`.",
    scope: "sandboxes:read",
    extension: true,
    params: TemplateParams,
    query: LogsQuery,
    responses: { 200: TemplateLogs },
    events: TemplateLogEvent,
    errors: [templateNotFound],
    handler: ({ actor, params, query, request, reply }) =>
      query.follow
        ? stream(app, actor, params.id, startOf(request, query), request, reply)
        : readLogs(app, actor, params.id, query),
  }),
];

/** Returns the offset of a returning reader (`Last-Event-ID`), or else the requested offset. */
function startOf(request: FastifyRequest, query: z.output<typeof LogsQuery>): number {
  const last = [request.headers["last-event-id"]].flat()[0];
  if (last === undefined || last === "") return query.after;
  if (!/^\d{1,15}$/.test(last))
    throw invalidField("Last-Event-ID", "must be the id of an event of this stream.");
  return Number(last);
}

async function stream(
  app: App,
  actor: Actor,
  id: string,
  after: number,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  await getTemplate(app, actor, id);
  const events = openEventStream(request, reply);
  for await (const event of followLogs(app, actor, id, { after, signal: events.signal })) {
    await events.send(event);
  }
  events.close();
  return streamed;
}
