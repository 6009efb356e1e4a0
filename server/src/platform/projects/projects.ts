/**
 * A project is a git repository that is served at an address. This folder owns the record: name, build settings and
 * secrets.
 *
 * A project and its production environment exist together or not at all. A name belongs to one project of the
 * installation. Secrets are returned once, or only to an explicit request. Deletion also removes containers, images and
 * repository.
 */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { openVariables, type Variables } from "../environments/variables.ts";
import { type EnvironmentView, environmentsOf } from "../environments/views.ts";
import { projectNotFound } from "./errors.ts";
import { type ProjectResponse, toProject } from "./schema.ts";
import * as store from "./store.ts";

export type { ProjectRow } from "./store.ts";
type ProjectRow = store.ProjectRow;

type Needs = Pick<App, "db" | "config" | "secrets">;

/** Returns projects with their workspace. Deleted projects are included. */
export const workspacesOfProjects = store.findWorkspaces;

/** Returns a project in the actor's workspaces. */
export async function getProject({ db }: Pick<App, "db">, actor: Actor, id: string): Promise<ProjectRow> {
  const row = await store.findOwn(db, id, workspaceIds(actor));
  if (!row) throw projectNotFound();
  return row;
}

/** Returns a project of any workspace. Only the server's own work calls this function. */
export function findProject(db: Db, id: string): Promise<ProjectRow | undefined> {
  return store.findLiving(db, id);
}

/** Returns a project by its slug. The caller checks access. */
export function findProjectByName(db: Db, name: string): Promise<ProjectRow | undefined> {
  return store.findByName(db, name);
}

/** Returns the workspace of a project in the actor's workspaces. Throws `project_not_found` for any other project. */
export function workspaceOf(actor: Actor, project: Pick<ProjectRow, "workspace_id">): ReachableWorkspace {
  const workspace = actor.workspaces.find(({ id }) => id === project.workspace_id);
  if (!workspace) throw projectNotFound();
  return workspace;
}

/** Returns a project that the actor may change, and locks it until the transaction ends. */
export async function lockWritableProject(
  tx: Db,
  actor: Actor,
  id: string,
): Promise<{ project: ProjectRow; workspace: ReachableWorkspace }> {
  const project = await store.lockOwn(tx, id, workspaceIds(actor));
  if (!project) throw projectNotFound();
  return { project, workspace: requireNotSuspended(workspaceOf(actor, project)) };
}

export async function list(
  app: Needs,
  actor: Actor,
  page: { skip: number; limit: number },
): Promise<{ items: ProjectResponse[]; total: number; skip: number; limit: number }> {
  const { rows, total } = await store.listOwn(app.db, workspaceIds(actor), page);
  return { items: await renderAll(app, actor, rows), total, ...page };
}

export async function get(app: Needs, actor: Actor, id: string): Promise<ProjectResponse> {
  return render(app, actor, await getProject(app, actor, id));
}

export async function readVariables(app: Needs, actor: Actor, id: string): Promise<Variables> {
  return openVariables(app, "projects", await getProject(app, actor, id));
}

export async function render(app: Needs, actor: Actor, row: ProjectRow): Promise<ProjectResponse> {
  const [project] = await renderAll(app, actor, [row]);
  return project!;
}

/** Returns the projects as responses contain them, with the state of their environments. */
async function renderAll(app: Needs, actor: Actor, rows: readonly ProjectRow[]): Promise<ProjectResponse[]> {
  return (await withEnvironments(app.db, rows)).map(({ project, environments }) =>
    toProject(app, actor, project, environments),
  );
}

async function withEnvironments(db: Db, rows: readonly ProjectRow[]) {
  const environments = await environmentsOf(
    db,
    rows.map(({ id }) => id),
  );
  return rows.flatMap((project) => {
    const [production, ...others] = environments.get(project.id) ?? [];
    // A project that was deleted between the two queries has no environment any more.
    if (!production) return [];
    return [{ project, environments: [production, ...others] as [EnvironmentView, ...EnvironmentView[]] }];
  });
}

/** Sets the project's branch after a change of its production environment. */
export async function setBranch(tx: Db, id: string, branch: string, now: Date): Promise<void> {
  await store.changeRow(tx, id, { branch, updated_at: now });
}

/** Returns the newest projects of a workspace with their environments, production first, and the total number. */
export async function overview(
  db: Db,
  workspaceId: string,
  limit: number,
): Promise<{
  items: { project: ProjectRow; environments: [EnvironmentView, ...EnvironmentView[]] }[];
  total: number;
}> {
  const { rows, total } = await store.listOwn(db, [workspaceId], { skip: 0, limit });
  return { items: await withEnvironments(db, rows), total };
}

/** Lists the projects of a group, newest first. The caller checks access to the group. */
export async function listGroup(app: Needs, actor: Actor, groupId: string): Promise<ProjectResponse[]> {
  return renderAll(app, actor, await store.listOfGroup(app.db, groupId, workspaceIds(actor)));
}

/** Sets the group of a project. Null removes the project from its group. */
export async function assignGroup(tx: Db, id: string, groupId: string | null, now: Date): Promise<void> {
  await store.changeRow(tx, id, { group_id: groupId, updated_at: now });
}

/** Returns the number of projects in a workspace. */
export function countProjects(db: Db, workspaceId: string): Promise<number> {
  return store.countRows(db, workspaceId);
}

export function target({ id, name }: Pick<ProjectRow, "id" | "name">) {
  return { kind: "project", id, label: name };
}
