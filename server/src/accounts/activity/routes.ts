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
    summary: "List audit entries",
    description: "Returns the newest first.",
    scope: "platform:read",
    query: z.object({
      skip: z
        .int()
        .min(0)
        .default(0)
        .describe("Number of entries to skip. Ignored with `cursor`. Default: 0."),
      limit: z
        .int()
        .min(1)
        .max(100)
        .default(30)
        .describe("Maximum number of entries on a page, 1 to 100. Default: 30."),
      workspace: z
        .string()
        .optional()
        .describe(
          "`personal` or a team id. Default: all workspaces that the caller reaches. `all`: the whole installation, deleted teams included; only for the operator.",
        ),
      actor: z
        .union([z.literal("user"), z.guid()])
        .optional()
        .describe("Actor of the entries. `user`: people and their tokens. An identity (UUID): that agent."),
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
        .describe("Action of the entries, such as `file.read`, or its noun alone, such as `file`."),
      target: z.string().min(1).max(128).optional().describe("Id of the object that was acted on."),
      from: z.iso.datetime({ offset: true }).optional().describe("Start of the time range, inclusive."),
      to: z.iso.datetime({ offset: true }).optional().describe("End of the time range, exclusive."),
      access: z
        .enum(["exclude", "include", "only"])
        .optional()
        .describe(
          "Filter for entries of reads and runs, such as `file.read` and `command.executed`, which change no record. Default: `exclude`.",
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
