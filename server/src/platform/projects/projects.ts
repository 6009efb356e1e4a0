/**
 * Projects: a git repository that is served at an address. This folder owns which there are, their names, what is laid
 * down for their builds, and their secrets. It promises that a project and its production environment are there
 * together or not at all, that a name is one project's in the whole installation, that what is secret is answered once
 * or only to who asks for it by name, and that a deleted project takes its containers, images and repository with it.
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

/** Projects with their workspace, deleted ones included. */
export const workspacesOfProjects = store.findWorkspaces;

/** One that the actor reaches. */
export async function getProject({ db }: Pick<App, "db">, actor: Actor, id: string): Promise<ProjectRow> {
  const row = await store.findOwn(db, id, workspaceIds(actor));
  if (!row) throw projectNotFound();
  return row;
}

/** Whoever asks: for what is done in the server's own name. */
export function findProject(db: Db, id: string): Promise<ProjectRow | undefined> {
  return store.findLiving(db, id);
}

/** By its slug; whether the caller may see it is still to be decided. */
export function findProjectByName(db: Db, name: string): Promise<ProjectRow | undefined> {
  return store.findByName(db, name);
}

/** Of a project that the actor reaches. */
export function workspaceOf(actor: Actor, project: Pick<ProjectRow, "workspace_id">): ReachableWorkspace {
  const workspace = actor.workspaces.find(({ id }) => id === project.workspace_id);
  if (!workspace) throw projectNotFound();
  return workspace;
}

/** One that the actor reaches and may change now; nobody else changes it until this transaction ends. */
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

/** As they are answered, each with its environments' state. */
export async function renderAll(
  app: Needs,
  actor: Actor,
  rows: readonly ProjectRow[],
): Promise<ProjectResponse[]> {
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
    // One that is deleted between the two queries has none.
    if (!production) return [];
    return [{ project, environments: [production, ...others] as [EnvironmentView, ...EnvironmentView[]] }];
  });
}

/** The project's branch is its production environment's, wherever it is changed. */
export async function followBranch(tx: Db, id: string, branch: string, now: Date): Promise<void> {
  await store.changeRow(tx, id, { branch, updated_at: now });
}

/** The newest of one workspace with their environments, production first, and how many there are. */
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

/** Those of a group, newest first; that the actor may see the group is known. */
export async function listGroup(app: Needs, actor: Actor, groupId: string): Promise<ProjectResponse[]> {
  return renderAll(app, actor, await store.listOfGroup(app.db, groupId, workspaceIds(actor)));
}

/** Null takes it out of the one it is in. */
export async function assignGroup(tx: Db, id: string, groupId: string | null, now: Date): Promise<void> {
  await store.changeRow(tx, id, { group_id: groupId, updated_at: now });
}

/** Projects a workspace has. */
export function countProjects(db: Db, workspaceId: string): Promise<number> {
  return store.countRows(db, workspaceId);
}

export function target({ id, name }: Pick<ProjectRow, "id" | "name">) {
  return { kind: "project", id, label: name };
}
