import { beforeAll, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import { hasJob } from "#jobs/jobs.ts";
import { testDatabase } from "../../../test/harness.ts";
import { get } from "../projects/projects.ts";
import { updateProject } from "../projects/update.ts";
import { makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { createEnvironment } from "./create.ts";
import { removeEnvironment, deleteEnvironment } from "./delete.ts";
import { getEnvironment, list, readVariables } from "./environments.ts";
import { EnvironmentCreate, EnvironmentUpdate } from "./schema.ts";
import { updateEnvironment } from "./update.ts";
import { variablesOf } from "./variables.ts";

const { db } = await testDatabase();
let app: ProjectsApp;

beforeAll(async () => {
  app = await projectsApp(db);
});

const refusal = (code: string, status: number) => expect.objectContaining({ code, status });
/** Matches a validation error of this field of the body. */
const badField = (...path: string[]) =>
  expect.objectContaining({ problems: [expect.objectContaining({ place: "body", path })] });
const on = (plan: Plan) => personOn(db, plan);
const add = (actor: Actor, projectId: string, body: object = {}) =>
  createEnvironment(
    app,
    actor,
    projectId,
    EnvironmentCreate.parse({ name: "staging", kind: "staging", branch: "next", ...body }),
  );
const change = (actor: Actor, projectId: string, id: string, body: object) =>
  updateEnvironment(app, actor, projectId, id, EnvironmentUpdate.parse(body));

describe("environment creation", () => {
  test("keeps the stored value of a variable when an update contains its hint or a mask", async () => {
    const actor = await on("pro");
    const long = "a-long-variable-wxyz";
    const project = await makeProject(app, actor);
    const { id } = await add(actor, project.id, { env_vars: { LONG: long, SHORT: "s", OLD: long } });
    await change(actor, project.id, id, {
      env_vars: { LONG: "…wxyz", SHORT: "********", OLD: "…abcd", NEW: "…wxyz" },
    });
    expect(await readVariables(app, actor, project.id, id)).toEqual({
      LONG: long,
      SHORT: "s",
      OLD: "…abcd",
      NEW: "…wxyz",
    });
  });

  test("creates an environment with a branch and a host of its own, and the plan's largest size", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor, { name: "shop" });
    const made = await add(actor, project.id, { env_vars: { A: "1" } });
    expect(made).toEqual({
      id: expect.any(String),
      project_id: project.id,
      name: "staging",
      kind: "staging",
      branch: "next",
      url: "https://shop--staging.apps.test:8443",
      status: "created",
      size: "medium",
      is_production: false,
      last_deployment: null,
      created_at: "2030-01-01T00:00:00.000Z",
      updated_at: "2030-01-01T00:00:00.000Z",
    });
    const all = await list(app, actor, project.id);
    expect(all.map(({ kind }) => kind)).toEqual(["production", "staging"]);
    expect(await readVariables(app, actor, project.id, made.id)).toEqual({ A: "1" });
  });

  test("refuses a second environment with the same name in a project", async () => {
    const actor = await on("team");
    const project = await makeProject(app, actor);
    const tries = await Promise.allSettled([1, 2, 3].map(() => add(actor, project.id)));
    const reasons = tries.flatMap((tried) => (tried.status === "rejected" ? [tried.reason] : []));
    expect(reasons).toEqual([refusal("environment_exists", 409), refusal("environment_exists", 409)]);
    await expect(add(actor, project.id, { name: "production" })).rejects.toThrow(
      refusal("environment_exists", 409),
    );
    await add(actor, (await makeProject(app, actor)).id);
  });

  test("counts a project's environments, with production, against the plan's limit", async () => {
    const [starter, pro, team] = [await on("starter"), await on("pro"), await on("team")];
    const small = await makeProject(app, starter);
    await expect(add(starter, small.id)).rejects.toThrow(
      expect.objectContaining({
        code: "plan_limit",
        status: 403,
        meta: { limit: "environments_per_project", allowed: 1, tier_needed: "pro" },
      }),
    );
    const middle = await makeProject(app, pro);
    await add(pro, middle.id, { name: "a" });
    await add(pro, middle.id, { name: "b" });
    await expect(add(pro, middle.id, { name: "c" })).rejects.toThrow(refusal("plan_limit", 403));
    const large = await makeProject(app, team);
    for (const name of ["a", "b", "c", "d", "e"]) await add(team, large.id, { name });
  });

  test("refuses a host whose first label has more than 63 characters", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor, { name: `a${"b".repeat(39)}` });
    expect(await add(actor, project.id, { name: "c".repeat(21) })).toMatchObject({
      url: `https://a${"b".repeat(39)}--${"c".repeat(21)}.apps.test:8443`,
    });
    await expect(add(actor, project.id, { name: "c".repeat(22) })).rejects.toThrow(badField("name"));
  });

  test.each([
    { name: "a--b" },
    { name: "A" },
    { name: "-a" },
    { name: "a-" },
    { name: "a.b" },
    { name: "" },
    { kind: "production" },
    { branch: "-x" },
    { branch: undefined },
    { env_vars: { "1A": "" } },
    { size: "large" },
  ])("refuses an environment with %j", (body) => {
    const whole = { name: "staging", kind: "staging", branch: "next", ...body };
    expect(EnvironmentCreate.safeParse(whole).success).toBe(false);
  });
});

test("prefers the environment's value of a variable to the project's", async () => {
  const actor = await on("pro");
  const project = await makeProject(app, actor, { env_vars: { A: "project", B: "project" } });
  const made = await add(actor, project.id, { env_vars: { A: "environment" } });
  expect(await variablesOf(app, db, made.id)).toEqual({ A: "environment", B: "project" });
  expect(await variablesOf(app, db, project.production_environment_id)).toEqual({
    A: "project",
    B: "project",
  });
  await change(actor, project.id, made.id, { env_vars: { A: null, C: "environment" } });
  expect(await variablesOf(app, db, made.id)).toEqual({ A: "project", B: "project", C: "environment" });
});

test("encrypts variables, and binds the ciphertext to its row", async () => {
  const actor = await on("pro");
  const project = await makeProject(app, actor, { env_vars: { KEY: "canary-value" } });
  const row = await db
    .selectFrom("projects")
    .selectAll()
    .where("id", "=", project.id)
    .executeTakeFirstOrThrow();
  expect(row.env_sealed!.toString("latin1")).not.toContain("canary-value");
  const other = await makeProject(app, actor);
  await db.updateTable("projects").set({ env_sealed: row.env_sealed }).where("id", "=", other.id).execute();
  await expect(variablesOf(app, db, other.production_environment_id)).rejects.toThrow("sealed value");
});

describe("environment updates", () => {
  test("updates branch, variables and size, and sets the project's branch to production's", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    const id = project.production_environment_id;
    expect(await change(actor, project.id, id, { branch: "trunk", size: "small" })).toMatchObject({
      branch: "trunk",
      size: "small",
    });
    expect(await get(app, actor, project.id)).toMatchObject({ branch: "trunk" });
    const staging = await add(actor, project.id);
    await change(actor, project.id, staging.id, { branch: "other" });
    expect(await get(app, actor, project.id)).toMatchObject({ branch: "trunk" });
  });

  test("refuses a size above the plan, names the plan that has it, and accepts the current size", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    const id = project.production_environment_id;
    await expect(change(actor, project.id, id, { size: "large" })).rejects.toThrow(
      expect.objectContaining({
        code: "plan_limit",
        meta: { limit: "size", allowed: ["small", "medium"], tier_needed: "team" },
      }),
    );
    const poorer = { ...actor, workspaces: [{ ...actor.workspaces[0]!, plan: "starter" as const }] };
    expect(await change(poorer, project.id, id, { size: "medium" })).toMatchObject({ size: "medium" });
  });

  test("accepts a response as an update", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    const made = await add(actor, project.id);
    const { branch, size } = made;
    expect(await change(actor, project.id, made.id, { branch, size })).toEqual(made);
  });
});

describe("environment deletion", () => {
  test("refuses to delete production before its project", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    await expect(
      deleteEnvironment(app, actor, project.id, project.production_environment_id),
    ).rejects.toThrow(refusal("environment_protected", 409));
  });

  test("hides a deleted environment at once, frees its name, and removes its app in a job", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    const made = await add(actor, project.id);
    await deleteEnvironment(app, actor, project.id, made.id);
    expect(await list(app, actor, project.id)).toHaveLength(1);
    await expect(getEnvironment(app, actor, project.id, made.id)).rejects.toThrow(
      refusal("environment_not_found", 404),
    );
    await expect(deleteEnvironment(app, actor, project.id, made.id)).rejects.toThrow(
      refusal("environment_not_found", 404),
    );
    expect(await hasJob(db, `environment:${made.id}`)).toBe(true);
    const again = await add(actor, project.id);
    expect(again.url).toBe(made.url);

    const stopped: string[] = [];
    const parts = { stopEnvironment: async (id: string) => void stopped.push(id) };
    await removeEnvironment(app, made.id, parts);
    await removeEnvironment(app, made.id, parts);
    expect(stopped).toEqual([made.id, made.id]);
    const rows = await db.selectFrom("environments").select("id").where("id", "=", made.id).execute();
    expect(rows).toEqual([]);
    expect(await list(app, actor, project.id)).toHaveLength(2);
  });

  test("keeps the app of a deleted environment until its deployment ends", async () => {
    const actor = await on("pro");
    const project = await makeProject(app, actor);
    const made = await add(actor, project.id);
    await db
      .insertInto("deployments")
      .values({
        project_id: project.id,
        environment_id: made.id,
        number: 1,
        status: "building",
        trigger_kind: "api",
        trigger_actor: "{}",
        steps: "[]",
      } as never)
      .execute();
    await deleteEnvironment(app, actor, project.id, made.id);
    const parts = { stopEnvironment: () => Promise.reject(new Error("touched")) };
    await expect(removeEnvironment(app, made.id, parts)).rejects.toThrow("has not ended");
  });
});

test("returns 404 for an environment of another workspace's project, and of another project", async () => {
  const [actor, stranger] = [await on("pro"), await on("pro")];
  const [project, other] = [await makeProject(app, actor), await makeProject(app, actor)];
  const made = await add(actor, project.id);
  const theirs = await makeProject(app, stranger);
  const noProject = refusal("project_not_found", 404);
  await expect(list(app, stranger, project.id)).rejects.toThrow(noProject);
  await expect(add(stranger, project.id)).rejects.toThrow(noProject);
  await expect(change(stranger, project.id, made.id, {})).rejects.toThrow(noProject);
  await expect(deleteEnvironment(app, stranger, project.id, made.id)).rejects.toThrow(noProject);
  await expect(readVariables(app, stranger, project.id, made.id)).rejects.toThrow(noProject);
  for (const [who, id] of [
    [actor, other.id],
    [stranger, theirs.id],
  ] as const) {
    const none = refusal("environment_not_found", 404);
    await expect(readVariables(app, who, id, made.id)).rejects.toThrow(none);
    await expect(change(who, id, made.id, {})).rejects.toThrow(none);
    await expect(deleteEnvironment(app, who, id, made.id)).rejects.toThrow(none);
  }
});

test("changes the hosts of all environments with a project's slug, if the new hosts fit", async () => {
  const actor = await on("pro");
  const project = await makeProject(app, actor);
  await add(actor, project.id, { name: "x".repeat(30) });
  await updateProject(app, actor, project.id, { name: "short" });
  expect((await list(app, actor, project.id)).map(({ url }) => url)).toEqual([
    "https://short.apps.test:8443",
    `https://short--${"x".repeat(30)}.apps.test:8443`,
  ]);
  await expect(updateProject(app, actor, project.id, { name: `c${"d".repeat(39)}` })).rejects.toThrow(
    badField("name"),
  );
  expect(await get(app, actor, project.id)).toMatchObject({ name: "short" });
});
