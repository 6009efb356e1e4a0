import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { feed } from "./feed.ts";
import { EventList, EventQuery } from "./schema.ts";

export const eventRoutes = (app: App): Route[] => [
  defineRoute({
    api: "sandbox",
    tag: "Events",
    method: "GET",
    path: "/v1/sandboxes/events",
    operationId: "listSandboxEvents",
    summary: "List events, newest first",
    description:
      "To get older pages, send `next_before` as `before`. To poll without gaps, send the id of your newest event as `since`. Events are kept for 30 days.",
    scope: "sandboxes:read",
    query: EventQuery,
    responses: { 200: EventList },
    handler: ({ actor, query }) => feed(app, actor, query),
  }),
];
