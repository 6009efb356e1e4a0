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
          "`personal` or a team id; all that the caller reaches where absent. `all` for the operator: the whole installation, deleted teams included.",
        ),
      actor: z
        .union([z.literal("user"), z.guid()])
        .optional()
        .describe("`user`: people and their own tokens; a uuid: that worker."),
      person: z
        .union([z.guid(), z.email()])
        .optional()
        .describe(
          "Id or e-mail address of a person: what their sessions, tokens and workers did, and what was done to their account.",
        ),
      action: z
        .string()
        .regex(/^[a-z_]{1,64}(\.[a-z_]{1,64})?$/, "must be an action such as file.read, or its noun alone")
        .optional()
        .describe("An action such as `file.read`, or its noun alone: `file`."),
      target: z.string().min(1).max(128).optional().describe("Id of what was acted on."),
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
        .describe("`next_cursor` of the page before, in place of `skip`: stable while entries are added."),
    }),
    responses: { 200: ActivityListResponse },
    errors: [workspaceNotFound, activityCursorInvalid],
    handler: ({ actor, query }) => listActivity(app, actor, query),
  }),
];
