import { beforeAll, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { testDatabase } from "../../../test/harness.ts";
import { deleteProject } from "../projects/delete.ts";
import { get as getProject } from "../projects/projects.ts";
import { inATeam, makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { assign, create, get, list, remove, unassign, update } from "./groups.ts";
import { GroupCreate, GroupUpdate } from "./schema.ts";

const { db } = await testDatabase();
let app: ProjectsApp;

beforeAll(async () => {
  app = await projectsApp(db);
});

const refusal = (code: string, status: number) => expect.objectContaining({ code, status });
const makeGroup = (actor: Actor, body: object = {}) =>
  create(app, actor, GroupCreate.parse({ name: "Shops", ...body }));

test("creates, updates, lists and returns a group with its projects", async () => {
  const actor = await personOn(db, "pro");
  const group = await makeGroup(actor, { description: "All of them", color: "#3366ff" });
  expect(group).toMatchObject({
    name: "Shops",
    description: "All of them",
    color: "#3366ff",
    workspace: "personal",
    project_count: 0,
  });
  const [one, other] = [await makeProject(app, actor), await makeProject(app, actor)];
  await assign(app, actor, group.id, one.id);
  // A repeated assignment changes nothing.
  expect(await assign(app, actor, group.id, one.id)).toMatchObject({
    project_count: 1,
    projects: [{ id: one.id, group_id: group.id }],
  });
  expect(await assign(app, actor, group.id, other.id)).toMatchObject({ project_count: 2 });
  const changed = GroupUpdate.parse({ name: "Stores", description: null });
  expect(await update(app, actor, group.id, changed)).toMatchObject({
    name: "Stores",
    description: null,
    color: "#3366ff",
    project_count: 2,
  });
  await deleteProject(app, actor, other.id);
  expect(await list(app, actor)).toMatchObject([{ id: group.id, name: "Stores", project_count: 1 }]);
  await unassign(app, actor, group.id, one.id);
  await unassign(app, actor, group.id, one.id);
  expect(await get(app, actor, group.id)).toMatchObject({ project_count: 0, projects: [] });
});

test("moves a project from one group to another, and keeps the project when its group is deleted", async () => {
  const actor = await personOn(db, "pro");
  const [first, second] = [await makeGroup(actor), await makeGroup(actor)];
  const project = await makeProject(app, actor);
  await assign(app, actor, first.id, project.id);
  await assign(app, actor, second.id, project.id);
  expect(await get(app, actor, first.id)).toMatchObject({ projects: [] });
  await remove(app, actor, second.id);
  expect(await getProject(app, actor, project.id)).toMatchObject({ group_id: null });
  await expect(get(app, actor, second.id)).rejects.toThrow(refusal("group_not_found", 404));
  expect(await list(app, actor)).toHaveLength(1);
});

test("refuses a project of another workspace", async () => {
  const { team, actors } = await inATeam(db, await personOn(db, "pro"), await personOn(db, "pro"));
  const [actor, other] = actors as [Actor, Actor];
  const group = await makeGroup(actor, { workspace: team });
  expect(group.workspace).toBe(team);
  const own = await makeProject(app, actor);
  await expect(assign(app, actor, group.id, own.id)).rejects.toThrow(refusal("other_workspace", 409));
  const shared = await makeProject(app, other, { workspace: team });
  expect(await assign(app, actor, group.id, shared.id)).toMatchObject({ project_count: 1 });
});

test("returns 404 for another user's group, and for assignments to it", async () => {
  const [actor, stranger] = [await personOn(db, "pro"), await personOn(db, "pro")];
  const group = await makeGroup(actor);
  const [own, theirs] = [await makeProject(app, actor), await makeProject(app, stranger)];
  const none = refusal("group_not_found", 404);
  await expect(get(app, stranger, group.id)).rejects.toThrow(none);
  await expect(update(app, stranger, group.id, {})).rejects.toThrow(none);
  await expect(remove(app, stranger, group.id)).rejects.toThrow(none);
  await expect(assign(app, stranger, group.id, theirs.id)).rejects.toThrow(none);
  await expect(unassign(app, stranger, group.id, own.id)).rejects.toThrow(none);
  await expect(assign(app, actor, group.id, theirs.id)).rejects.toThrow(refusal("project_not_found", 404));
  expect(await list(app, stranger)).toEqual([]);
});

test("refuses changes of groups in a suspended workspace, but allows their deletion", async () => {
  const actor = await personOn(db, "pro");
  const group = await makeGroup(actor);
  const suspended = { ...actor, workspaces: [{ ...actor.workspaces[0]!, suspended: true }] };
  await expect(update(app, suspended, group.id, {})).rejects.toThrow(refusal("account_suspended", 402));
  await expect(makeGroup(suspended)).rejects.toThrow(refusal("account_suspended", 402));
  await remove(app, suspended, group.id);
});
