import { beforeAll, expect, test } from "vitest";
import { hasJob } from "#jobs/jobs.ts";
import { testDatabase } from "../../../test/harness.ts";
import { makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { removeProject, deleteProject } from "./delete.ts";
import { checkName } from "./names.ts";
import { countProjects, findProject, findProjectByName, get, list } from "./projects.ts";

const { db } = await testDatabase();
let app: ProjectsApp;

beforeAll(async () => {
  app = await projectsApp(db);
});

const refusal = (code: string, status: number) => expect.objectContaining({ code, status });

/** Fake functions that record the removed parts in order. The part named in `fails` fails once. */
function parts(fails?: string) {
  const done: string[] = [];
  let isFailing = fails !== undefined;
  const part = (name: string) => async () => {
    done.push(name);
    if (name !== fails || !isFailing) return;
    isFailing = false;
    throw new Error(`${name} failed`);
  };
  return {
    done,
    parts: {
      removeApps: part("apps"),
      removeAddons: part("addons"),
      dropImages: part("images"),
      removeRepository: part("repository"),
    },
  };
}

test("hides a deleted project at once, and frees its name and domain", async () => {
  const actor = await personOn(db, "pro");
  const made = await makeProject(app, actor, { name: "shop", custom_domain: "www.example.com" });
  await deleteProject(app, actor, made.id);
  await expect(get(app, actor, made.id)).rejects.toThrow(refusal("project_not_found", 404));
  await expect(deleteProject(app, actor, made.id)).rejects.toThrow(refusal("project_not_found", 404));
  expect(await list(app, actor, { skip: 0, limit: 20 })).toMatchObject({ items: [], total: 0 });
  expect(await findProject(db, made.id)).toBeUndefined();
  expect(await findProjectByName(db, "shop")).toBeUndefined();
  expect(await countProjects(db, actor.workspaces[0]!.id)).toBe(0);
  expect(await checkName(app, "shop")).toMatchObject({ available: true });
  expect(await hasJob(db, `project:${made.id}`)).toBe(true);
  const again = await makeProject(app, actor, { name: "shop", custom_domain: "www.example.com" });
  await removeProject(app, made.id, parts().parts);
  expect(await get(app, actor, again.id)).toMatchObject({ name: "shop" });
});

test.each(["apps", "addons", "images", "repository"])(
  "keeps the project's row when the removal of its %s fails, and completes the removal at a retry",
  async (fails) => {
    const actor = await personOn(db, "pro");
    const made = await makeProject(app, actor);
    await deleteProject(app, actor, made.id);
    const { done, parts: wired } = parts(fails);
    const row = () => db.selectFrom("projects").select("id").where("id", "=", made.id).executeTakeFirst();
    await expect(removeProject(app, made.id, wired)).rejects.toThrow(`${fails} failed`);
    expect(await row()).toBeDefined();
    done.length = 0;
    await removeProject(app, made.id, wired);
    expect(done).toEqual(["apps", "addons", "images", "repository"]);
    expect(await row()).toBeUndefined();
    // An earlier job may have died after it deleted the row.
    await removeProject(app, made.id, wired);
  },
);

test("ignores the removal job of a project that was not deleted", async () => {
  const actor = await personOn(db, "pro");
  const made = await makeProject(app, actor);
  const { done, parts: wired } = parts();
  await removeProject(app, made.id, wired);
  expect(done).toEqual([]);
  expect(await get(app, actor, made.id)).toMatchObject({ id: made.id });
});

test("refuses the deletion of another workspace's project, and allows a deletion in a suspended workspace", async () => {
  const actor = await personOn(db, "pro");
  const made = await makeProject(app, actor);
  await expect(deleteProject(app, await personOn(db, "pro"), made.id)).rejects.toThrow(
    refusal("project_not_found", 404),
  );
  await deleteProject(app, { ...actor, workspaces: [{ ...actor.workspaces[0]!, suspended: true }] }, made.id);
});
