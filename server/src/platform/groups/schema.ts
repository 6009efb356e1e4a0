/** Wire schemas of project groups. */
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { workspaceName } from "#accounts/workspaces.ts";
import { ProjectResponse } from "../projects/schema.ts";
import type { GroupRow } from "./store.ts";

const printable = { error: "must not contain control characters" };
const name = z
  .string()
  .trim()
  .min(1)
  .max(64)
  .regex(/^\P{Cc}*$/u, printable);
const description = z
  .string()
  .max(500)
  .regex(/^[\P{Cc}\n\t]*$/u, printable)
  .nullable();
const color = z
  .string()
  .regex(/^#[0-9a-f]{6}$/i, { error: "must be a colour such as #3366ff" })
  .nullable();

export const GroupCreate = z
  .strictObject({
    name: name.describe("Name of the group, 1 to 64 characters. Need not be unique."),
    description: description
      .default(null)
      .describe("Description for people, at most 500 characters. Default: null."),
    color: color.default(null).describe("Display color as `#rrggbb`, such as `#3366ff`. Default: null."),
    workspace: z.string().max(64).nullish().describe("`personal` or a team id."),
  })
  .meta({ id: "GroupCreate" });
export type GroupCreate = z.output<typeof GroupCreate>;

export const GroupUpdate = z
  .strictObject({
    name: name.optional().describe("New name of the group, 1 to 64 characters."),
    description: description.optional().describe("New description, at most 500 characters. Null removes it."),
    color: color.optional().describe("New color as `#rrggbb`, such as `#3366ff`. Null removes it."),
  })
  .meta({ id: "GroupUpdate" });
export type GroupUpdate = z.output<typeof GroupUpdate>;

const record = {
  id: z.guid().describe("Id (UUID) of the group."),
  name: z.string().describe("Name of the group."),
  description: z.string().nullable().describe("Description for people. Null if there is none."),
  color: z
    .string()
    .nullable()
    .describe("Display color as `#rrggbb`, such as `#3366ff`. Null if none was chosen."),
  workspace: z.string().describe("Workspace of the group and its projects: `personal` or a team id."),
  project_count: z.int().describe("Number of projects in the group."),
  created_at: z.iso.datetime().describe("Time of creation."),
};

export const GroupResponse = z.object(record).meta({ id: "GroupResponse" });
export type GroupResponse = z.output<typeof GroupResponse>;

export const GroupWithProjects = z
  .object({ ...record, projects: z.array(ProjectResponse).describe("Projects of the group, newest first.") })
  .meta({ id: "GroupWithProjects" });
export type GroupWithProjects = z.output<typeof GroupWithProjects>;

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = Object.keys(GroupWithProjects.shape).filter(
  (field) => !(field in GroupUpdate.shape),
);

export function toGroup(actor: Actor, row: GroupRow): GroupResponse {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    color: row.color,
    workspace: workspaceName(actor, row.workspace_id),
    project_count: row.project_count,
    created_at: row.created_at.toISOString(),
  };
}
