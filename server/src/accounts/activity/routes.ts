import { z } from "zod";
import { defineRoute, type Route } from "#http/define-route.ts";
import type { App } from "../../app.ts";
import { workspaceNotFound } from "../errors.ts";
import { activityCursorInvalid, listActivity } from "./list.ts";
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
        .describe(
          "`personal` or a team id. Default: all workspaces that the caller reaches. `all`: the whole installation, deleted teams included; for the operator alone.",
        ),
      actor: z
        .union([z.literal("user"), z.guid()])
        .optional()
        .describe("`user`: people and their own tokens; a uuid: that worker."),
      person: z
        .union([z.guid(), z.email()])
        .optional()
        .describe(
          "Id or e-mail address of a person. Matches the actions of their sessions, tokens and workers, and changes of their account.",
        ),
      action: z
        .string()
        .regex(/^[a-z_]{1,64}(\.[a-z_]{1,64})?$/, "must be an action such as file.read, or its noun alone")
        .optional()
        .describe("An action such as `file.read`, or its noun alone: `file`."),
      target: z.string().min(1).max(128).optional().describe("Id of the object that was acted on."),
      from: z.iso.datetime({ offset: true }).optional().describe("First moment, inclusive."),
      to: z.iso.datetime({ offset: true }).optional().describe("Last moment, exclusive."),
      access: z
        .enum(["exclude", "include", "only"])
        .optional()
        .describe(
          "Entries of reads and runs (`file.read`, `command.executed`, …), which change no record. Default `exclude`.",
        ),
      cursor: z
        .string()
        .max(128)
        .optional()
        .describe("`next_cursor` of the previous page, in place of `skip`. Stable while entries are added."),
    }),
    responses: { 200: ActivityListResponse },
    errors: [workspaceNotFound, activityCursorInvalid],
    handler: ({ actor, query }) => listActivity(app, actor, query),
  }),
];
