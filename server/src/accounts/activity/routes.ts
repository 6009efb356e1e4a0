import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { workspaceNotFound } from "../errors.ts";
import { listActivity } from "./list.ts";

export const ActivityEntry = z
  .object({
    id: z.guid(),
    at: z.iso.datetime(),
    actor: z.object({
      kind: z.enum(["user", "api_token", "worker", "system"]),
      id: z.string(),
      label: z.string(),
      role: z.string().nullable(),
    }),
    action: z.string(),
    target: z.object({ kind: z.string(), id: z.string().nullable(), label: z.string().nullable() }),
    workspace: z.string().nullable(),
    ip: z.string().nullable(),
    detail: z.looseObject({}),
  })
  .meta({ id: "ActivityEntry" });

const ActivityListResponse = z
  .object({ items: z.array(ActivityEntry), total: z.int(), skip: z.int(), limit: z.int() })
  .meta({ id: "ActivityListResponse" });

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
