/** Wire format of the audit log. */
import { z } from "zod";
import { PersonBehind } from "../users/person.ts";

export const ActivityEntry = z
  .object({
    id: z.guid().describe("Id (UUID) of the entry."),
    at: z.iso.datetime().describe("Time of the action."),
    actor: z
      .object({
        kind: z
          .enum(["user", "api_token", "worker", "system"])
          .describe(
            "`user`: a signed-in person. `worker`: an agent. `system`: the server, or an operator command on its host.",
          ),
        id: z
          .string()
          .describe(
            "Id (UUID) of the account or agent identity, or id of the token (`tok_…`). `system` for the server.",
          ),
        label: z
          .string()
          .describe(
            "Name of the actor at that time: e-mail address, token name or agent name. `deleted account` once the account is deleted.",
          ),
        role: z
          .string()
          .nullable()
          .describe(
            "Role of the actor in the workspace at that time: `owner`, `admin`, `member` or `viewer`. Null for the system.",
          ),
        user: PersonBehind,
      })
      .describe("Actor that performed the action: a person, token, agent or the server."),
    person: z
      .object({
        id: z.guid().describe("Id (UUID) of the account. Stays after the account is deleted."),
        email: z
          .string()
          .nullable()
          .describe("E-mail address at that time. Null once the account is deleted."),
      })
      .nullable()
      .describe("Person behind the actor: the owner of the session, token or worker. Null for the system."),
    action: z
      .string()
      .describe("Action as noun and past participle, such as `project.created` or `file.read`."),
    target: z
      .object({
        kind: z.string().describe("Kind of the object, such as `project` or `sandbox`."),
        id: z
          .string()
          .nullable()
          .describe("Id of the object. Null if it has none, or was erased from the log."),
        label: z
          .string()
          .nullable()
          .describe("Name of the object at that time. Null if it has none, or was erased from the log."),
      })
      .describe("Object that was acted on."),
    workspace: z
      .string()
      .nullable()
      .describe(
        "Workspace of the object: `personal` for the caller's own, else its id (UUID). Null if it belongs to none.",
      ),
    ip: z.string().nullable().describe("IP address of the client. Null for background work."),
    detail: z
      .looseObject({})
      .describe("Facts about the action, such as the changed `fields`. Never holds secrets."),
  })
  .meta({ id: "ActivityEntry" });

export const ActivityListResponse = z
  .object({
    items: z.array(ActivityEntry).describe("Entries of this page, newest first."),
    total: z.int().describe("Number of matching entries on all pages."),
    skip: z.int().describe("Number of entries skipped before this page. 0 when `cursor` was sent."),
    limit: z.int().describe("Maximum number of entries on a page, from the request."),
  })
  .extend({
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "ActivityListResponse" });
