/** The wire of the audit log. */
import { z } from "zod";
import { PersonBehind } from "../users/person.ts";

export const ActivityEntry = z
  .object({
    id: z.guid(),
    at: z.iso.datetime(),
    actor: z.object({
      kind: z.enum(["user", "api_token", "worker", "system"]),
      id: z.string(),
      label: z.string(),
      role: z.string().nullable(),
      user: PersonBehind,
    }),
    person: z
      .object({ id: z.guid(), email: z.string().nullable() })
      .nullable()
      .describe("Person behind the actor: the owner of the session, token or worker. Null for the system."),
    action: z.string(),
    target: z.object({ kind: z.string(), id: z.string().nullable(), label: z.string().nullable() }),
    workspace: z.string().nullable(),
    ip: z.string().nullable(),
    detail: z.looseObject({}),
  })
  .meta({ id: "ActivityEntry" });

export const ActivityListResponse = z
  .object({ items: z.array(ActivityEntry), total: z.int(), skip: z.int(), limit: z.int() })
  .extend({
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "ActivityListResponse" });
