import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { workspaceNotFound } from "../errors.ts";
import { listActivity } from "./list.ts";
import { ActivityListResponse } from "./schema.ts";

export const activityRoutes = (app: Pick<App, "db">): Route[] => [
  defineRoute({
    api: "platform",
    method: "GET",
    path: "/api/v1/activity",
    operationId: "listActivity",
    tag: "Activity",
    summary: "Audit entries, newest first",
    scope: "platform:read",
    query: z.object({
      skip: z.int().min(0).default(0),
      limit: z.int().min(1).max(100).default(30),
      workspace: z
        .string()
        .optional()
        .describe("`personal` or a team id; all that the caller reaches where absent."),
      actor: z
        .union([z.literal("user"), z.guid()])
        .optional()
        .describe("`user`: people and their own tokens; a uuid: that worker."),
    }),
    responses: { 200: ActivityListResponse },
    errors: [workspaceNotFound],
    handler: ({ actor, query }) => listActivity(app, actor, query),
  }),
];
