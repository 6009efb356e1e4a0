/**
 * Project groups, with which people organise projects. A project is in at most one group, in its own workspace.
 * Deleting a group keeps its projects.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireNotSuspended, requireWritableWorkspace, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import {
  assignGroup,
  listGroup,
  lockWritableProject,
  target as projectTarget,
} from "../projects/projects.ts";
import { groupLimitReached, groupNotFound, otherWorkspace } from "./errors.ts";
import {
  type GroupCreate,
  type GroupResponse,
  type GroupUpdate,
  type GroupWithProjects,
  toGroup,
} from "./schema.ts";
import { changeRow, deleteRow, findOwn, lockOwn, insertRow, listOwn, lockAndCount } from "./store.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Limit of a workspace's groups. The list returns all groups in one response. */
const maxGroups = 200;

export async function list(app: Needs, actor: Actor): Promise<GroupResponse[]> {
  return (await listOwn(app.db, workspaceIds(actor))).map((row) => toGroup(actor, row));
}

export async function get(app: Needs, actor: Actor, id: string): Promise<GroupWithProjects> {
  const row = await findOwn(app.db, id, workspaceIds(actor));
  if (!row) throw groupNotFound();
  return { ...toGroup(actor, row), projects: await listGroup(app, actor, row.id) };
}

export async function create(app: Needs, actor: Actor, input: GroupCreate): Promise<GroupResponse> {
  const workspace = requireWritableWorkspace(actor, input.workspace);
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCount(tx, workspace.id)) >= maxGroups) throw groupLimitReached(maxGroups);
    const made = await insertRow(tx, {
      workspace_id: workspace.id,
      name: input.name,
      description: input.description,
      color: input.color,
      created_at: app.clock.now(),
    });
    await recordActivity(tx, actor, "project_group.created", target(made), workspace.id);
    return made;
  });
  return toGroup(actor, { ...row, project_count: 0 });
}

export async function update(
  app: Needs,
  actor: Actor,
  id: string,
  input: GroupUpdate,
): Promise<GroupWithProjects> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockWritableGroup(tx, actor, id);
    if (Object.keys(input).length === 0) return;
    await changeRow(tx, row.id, input);
    await recordActivity(
      tx,
      actor,
      "project_group.updated",
      target({ ...row, name: input.name ?? row.name }),
      row.workspace_id,
      { fields: Object.keys(input) },
    );
  });
  return get(app, actor, id);
}

/** Deletes a group. Allowed while suspended. */
export async function remove(app: Needs, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockGroup(tx, actor, id);
    await deleteRow(tx, row.id);
    await recordActivity(tx, actor, "project_group.deleted", target(row), row.workspace_id);
  });
}

/** Moves a project into the group, and out of its earlier group. Safe to repeat. */
export async function assign(
  app: Needs,
  actor: Actor,
  id: string,
  projectId: string,
): Promise<GroupWithProjects> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockWritableGroup(tx, actor, id);
    const { project } = await lockWritableProject(tx, actor, projectId);
    if (project.workspace_id !== row.workspace_id) throw otherWorkspace();
    if (project.group_id === row.id) return;
    await assignGroup(tx, project.id, row.id, app.clock.now());
    await recordActivity(tx, actor, "project.grouped", projectTarget(project), row.workspace_id, {
      group: row.name,
    });
  });
  return get(app, actor, id);
}

/** Removes a project from the group. Does nothing if the project is not in the group. */
export async function unassign(app: Needs, actor: Actor, id: string, projectId: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockGroup(tx, actor, id);
    const { project } = await lockWritableProject(tx, actor, projectId);
    if (project.group_id !== row.id) return;
    await assignGroup(tx, project.id, null, app.clock.now());
    await recordActivity(tx, actor, "project.ungrouped", projectTarget(project), row.workspace_id, {
      group: row.name,
    });
  });
}

async function lockGroup(tx: Db, actor: Actor, id: string) {
  const row = await lockOwn(tx, id, workspaceIds(actor));
  if (!row) throw groupNotFound();
  return row;
}

async function lockWritableGroup(tx: Db, actor: Actor, id: string) {
  const row = await lockGroup(tx, actor, id);
  requireNotSuspended(actor.workspaces.find((workspace) => workspace.id === row.workspace_id)!);
  return row;
}

function target({ id, name }: { id: string; name: string }) {
  return { kind: "project_group", id, label: name };
}
