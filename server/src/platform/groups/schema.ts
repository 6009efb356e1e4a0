/** The wire of project groups. */
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
    name,
    description: description.default(null),
    color: color.default(null),
    workspace: z.string().max(64).nullish().describe("`personal` or a team id."),
  })
  .meta({ id: "GroupCreate" });
export type GroupCreate = z.output<typeof GroupCreate>;

export const GroupUpdate = z
  .strictObject({ name: name.optional(), description: description.optional(), color: color.optional() })
  .meta({ id: "GroupUpdate" });
export type GroupUpdate = z.output<typeof GroupUpdate>;

const record = {
  id: z.guid(),
  name: z.string(),
  description: z.string().nullable(),
  color: z.string().nullable(),
  workspace: z.string(),
  project_count: z.int(),
  created_at: z.iso.datetime(),
};

export const GroupResponse = z.object(record).meta({ id: "GroupResponse" });
export type GroupResponse = z.output<typeof GroupResponse>;

export const GroupWithProjects = z
  .object({ ...record, projects: z.array(ProjectResponse) })
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
