/** Finds add-ons by their project, for callers with access to it. */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { getProject } from "../projects/projects.ts";
import { addonNotFound } from "./errors.ts";
import { type AddonView, countRows, findAny, findOf, findWorkspaces, listOf } from "./store.ts";

export type { AddonRow, AddonView } from "./store.ts";

/** Returns an add-on of a project in the actor's workspaces. Throws `project_not_found` and `addon_not_found`. */
export async function requireAddon(
  { db }: Pick<App, "db">,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<AddonView> {
  const project = await getProject({ db }, actor, projectId);
  const row = await findOf(db, project.id, addonId);
  if (!row) throw addonNotFound();
  return row;
}

/** Returns add-ons with their workspace. Deleted add-ons are included. */
export const workspacesOfAddons = findWorkspaces;

/** Lists the add-ons of a project in the actor's workspaces, newest first. */
export async function listAddons(
  { db }: Pick<App, "db">,
  actor: Actor,
  projectId: string,
): Promise<AddonView[]> {
  const { id } = await getProject({ db }, actor, projectId);
  return listOf(db, id);
}

/** Returns an add-on without an access check, for the server's own work. Undefined if the add-on is deleted. */
export async function findAddon(db: Db, id: string): Promise<AddonView | undefined> {
  const row = await findAny(db, id);
  return row?.deleted_at === null ? row : undefined;
}

/** True if the project has an add-on. */
export async function hasAddons(db: Db, projectId: string): Promise<boolean> {
  return (await listOf(db, projectId)).length > 0;
}

/** Returns the number of add-ons in the workspace. */
export function countAddons(db: Db, workspaceId: string): Promise<number> {
  return countRows(db, workspaceId);
}

export function target({ id, name }: Pick<AddonView, "id" | "name">) {
  return { kind: "addon", id, label: name };
}
