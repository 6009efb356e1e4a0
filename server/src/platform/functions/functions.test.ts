import { beforeAll, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { hasJob } from "#jobs/jobs.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createProject } from "../projects/create.ts";
import { checkName } from "../projects/names.ts";
import { inATeam, personOn, projectInput, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { createFunction } from "./create.ts";
import { removeFunction, deleteFunction } from "./delete.ts";
import { get, list, readVariables } from "./functions.ts";
import { hashKey } from "./keys.ts";
import type { FunctionParts } from "./parts.ts";
import { FunctionCreate, FunctionUpdate } from "./schema.ts";
import { noInstances } from "./testing/no-instances.ts";
import { rotateKey, updateFunction } from "./update.ts";

const { db } = await testDatabase();
let app: ProjectsApp;
let named = 0;

beforeAll(async () => {
  app = await projectsApp(db);
  await db
    .insertInto("regions")
    .values([
      { code: "eu-1", name: "Here" },
      { code: "us-1", name: "There" },
    ])
    .execute();
});

/** Matches a validation error of this field of the body. */
const badField = (...path: string[]) =>
  expect.objectContaining({ problems: [expect.objectContaining({ place: "body", path })] });
const refusal = (code: string, status: number, more: object = {}) =>
  expect.objectContaining({ code, status, ...more });
const body = (more: object = {}) => ({
  name: `hello-${++named}`,
  runtime: "nodejs",
  handler_code: 'export default () => "hello"',
  ...more,
});
const make = (actor: Actor, more: object = {}) =>
  createFunction(app, noInstances, actor, FunctionCreate.parse(body(more)));
const change = (actor: Actor, id: string, input: object, parts: FunctionParts = noInstances) =>
  updateFunction(app, parts, actor, id, FunctionUpdate.parse(input));
const rowOf = (id: string) =>
  db.selectFrom("functions").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
const goLive = async (id: string) => {
  await db
    .updateTable("functions")
    .set({ live_version_id: "fnv_x", pending_deploy: false })
    .where("id", "=", id)
    .execute();
};

describe("function creation", () => {
  test("creates a function with an address, default settings and pending code", async () => {
    const actor = await personOn(db, "starter");
    const made = await make(actor, { name: "greeter" });
    expect(made).toEqual({
      id: expect.any(String),
      name: "greeter",
      slug: "greeter",
      url: "https://greeter.fn.apps.test:8443",
      runtime: "nodejs",
      handler_code: 'export default () => "hello"',
      dependencies: {},
      auth_mode: "none",
      api_key: null,
      api_key_hint: null,
      idle_timeout_seconds: 300,
      memory_mb: 256,
      timeout_seconds: 30,
      node: "eu-1",
      workspace: "personal",
      status: "created",
      progress: null,
      pending_deploy: true,
      last_deployed_at: null,
      error: null,
      created_at: "2030-01-01T00:00:00.000Z",
      updated_at: "2030-01-01T00:00:00.000Z",
    });
    const { api_key: _, ...record } = made;
    expect(await get(app, noInstances, actor, made.id)).toEqual(record);
    const { handler_code: _code, dependencies: _all, ...summary } = record;
    expect(await list(app, noInstances, actor, { skip: 0, limit: 20 })).toEqual({
      items: [summary],
      total: 1,
      skip: 0,
      limit: 20,
    });
  });

  test("returns the key of a function once, and stores only its hash", async () => {
    const actor = await personOn(db, "pro");
    const made = await make(actor, { auth_mode: "api_key" });
    expect(made.api_key).toMatch(/^fnk_[A-Za-z0-9]{40}$/);
    const row = await rowOf(made.id);
    expect(row.api_key_hash).toEqual(hashKey(made.api_key!));
    expect(made.api_key_hint).toBe(made.api_key!.slice(0, 8));
    const { rows } = await db
      .selectFrom("activity")
      .selectAll()
      .where("target_id", "=", made.id)
      .execute()
      .then((found) => ({ rows: found }));
    for (const seen of [row, rows, await get(app, noInstances, actor, made.id)])
      expect(JSON.stringify(seen)).not.toContain(made.api_key);
  });

  test("encrypts variables, and returns their values to an explicit request", async () => {
    const actor = await personOn(db, "pro");
    const made = await make(actor, { env_vars: { TOKEN: "canary-7f3a" } });
    expect(await readVariables(app, actor, made.id)).toEqual({ TOKEN: "canary-7f3a" });
    const row = await rowOf(made.id);
    expect(row.env_sealed!.toString("latin1")).not.toContain("canary-7f3a");
    expect(JSON.stringify([made, { ...row, env_sealed: null }])).not.toContain("canary-7f3a");
  });

  test.each([
    [{ name: "ab" }],
    [{ name: "api" }],
    [{ name: "a--b" }],
    [{ runtime: "ruby" }],
    [{ handler_code: "" }],
    [{ handler_code: "x".repeat(1024 ** 2 + 1) }],
    [{ handler_code: "a\0" }],
    [{ dependencies: { x: "file:/etc" } }],
    [{ dependencies: Object.fromEntries(Array.from({ length: 101 }, (_, at) => [`p${at}`, "1"])) }],
    [{ idle_timeout_seconds: 9 }],
    [{ idle_timeout_seconds: 86_401 }],
    [{ timeout_seconds: 0 }],
    [{ timeout_seconds: 301 }],
    [{ memory_mb: 127 }],
    [{ memory_mb: 1025 }],
    [{ env_vars: { PORT: "1" } }],
    [{ env_vars: { KONTOR_HANDLER: "/etc/passwd" } }],
    [{ auth_mode: "basic" }],
    [{ surely: 1 }],
  ])("refuses a function with %j", (more) => {
    expect(FunctionCreate.safeParse(body(more)).success).toBe(false);
  });

  test.each([
    [{ idle_timeout_seconds: 10, timeout_seconds: 1, memory_mb: 128 }],
    [{ idle_timeout_seconds: 86_400, timeout_seconds: 300, memory_mb: 1024 }],
    [{ handler_code: "x".repeat(1024 ** 2) }],
  ])("accepts a value at the limit of its field (%#)", (more) => {
    expect(FunctionCreate.safeParse(body(more)).success).toBe(true);
  });

  test.each([
    ["starter", 1, 256],
    ["pro", 10, 512],
    ["team", 50, 1024],
  ] as const)("limits functions on plan %s to %i, of %i MB each", async (plan, count, memory) => {
    const actor = await personOn(db, plan);
    for (let made = 0; made < count; made += 1) await make(actor, { memory_mb: memory });
    await expect(make(actor)).rejects.toEqual(
      refusal("plan_limit", 403, {
        meta: expect.objectContaining({ limit: "functions", allowed: count }),
      }),
    );
    if (plan === "team") return;
    await expect(make(await personOn(db, plan), { memory_mb: memory + 1 })).rejects.toEqual(
      refusal("plan_limit", 403, {
        meta: expect.objectContaining({ limit: "function_memory_mb", allowed: memory }),
      }),
    );
  });

  test("does not exceed the plan's limit when functions are created concurrently", async () => {
    const actor = await personOn(db, "starter");
    const ends = await Promise.allSettled(Array.from({ length: 5 }, () => make(actor)));
    expect(ends.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
  });

  test("names the field of an unknown region, and refuses a suspended workspace with its own error", async () => {
    const actor = await personOn(db, "pro");
    await expect(make(actor, { node: "mars-1" })).rejects.toEqual(badField("node"));
    const suspended = { ...actor, workspaces: actor.workspaces.map((one) => ({ ...one, suspended: true })) };
    await expect(make(suspended)).rejects.toEqual(refusal("account_suspended", 402));
    await expect(make(actor, { workspace: "99999999-9999-4999-8999-999999999999" })).rejects.toEqual(
      refusal("workspace_not_found", 404),
    );
  });
});

describe("function names", () => {
  test("refuses the name of another function or project", async () => {
    const actor = await personOn(db, "team");
    const project = await createProject(app, actor, projectInput());
    await expect(make(actor, { name: project.name })).rejects.toEqual(refusal("name_taken", 409));
    const made = await make(actor);
    await expect(make(actor, { name: made.name })).rejects.toEqual(refusal("name_taken", 409));
    await expect(createProject(app, actor, projectInput({ name: made.name }))).rejects.toEqual(
      refusal("name_taken", 409),
    );
    expect(await checkName(app, made.name)).toEqual({ name: made.name, available: false, reason: "taken" });
    expect(await checkName(app, "admin")).toMatchObject({ available: false, reason: "reserved" });
    expect(await checkName(app, "A")).toMatchObject({ available: false, reason: "invalid" });
    await deleteFunction(app, actor, made.id);
    expect(await checkName(app, made.name)).toMatchObject({ available: true, reason: null });
  });

  test("gives a name to only one of a project and a function that request it at once", async () => {
    const actor = await personOn(db, "team");
    for (let round = 0; round < 5; round += 1) {
      const name = `contested-${round}`;
      const ends = await Promise.allSettled([
        make(actor, { name }),
        createProject(app, actor, projectInput({ name })),
        make(actor, { name }),
      ]);
      expect(ends.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    }
  });

  test("renames a function before its first deploy, and not after it", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor);
    expect(await change(actor, id, { name: "renamed-once" })).toMatchObject({
      slug: "renamed-once",
      url: "https://renamed-once.fn.apps.test:8443",
    });
    await goLive(id);
    await expect(change(actor, id, { name: "renamed-twice" })).rejects.toEqual(
      refusal("function_deployed", 409),
    );
    expect((await change(actor, id, { name: "renamed-once" })).name).toBe("renamed-once");
  });
});

describe("function updates", () => {
  test("marks changed code and dependencies as pending, but no other change", async () => {
    const actor = await personOn(db, "pro");
    const made = await make(actor, { dependencies: { nanoid: "5" } });
    await goLive(made.id);
    const same = { handler_code: made.handler_code, dependencies: { nanoid: "5" } };
    const other = { auth_mode: "api_key", env_vars: { A: "1" }, timeout_seconds: 5, memory_mb: 128 };
    expect(await change(actor, made.id, { ...same, ...other })).toMatchObject({
      pending_deploy: false,
      status: "idle",
    });
    expect(await change(actor, made.id, { handler_code: "export default () => 1" })).toMatchObject({
      pending_deploy: true,
    });
    await goLive(made.id);
    expect(await change(actor, made.id, { dependencies: {} })).toMatchObject({
      pending_deploy: true,
      dependencies: {},
    });
  });

  test("notifies the running instances of a change after its commit", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor);
    const seen: number[] = [];
    const parts = { ...noInstances, changed: async () => void seen.push((await rowOf(id)).timeout_seconds) };
    await change(actor, id, { timeout_seconds: 7 }, parts);
    expect(seen).toEqual([7]);
  });

  test("merges variables, and removes a variable that is null", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor, { env_vars: { A: "1", B: "2" } });
    await change(actor, id, { env_vars: { A: null, C: "3" } });
    expect(await readVariables(app, actor, id)).toEqual({ B: "2", C: "3" });
    const many = Object.fromEntries(Array.from({ length: 199 }, (_, at) => [`V${at}`, "x"]));
    await expect(change(actor, id, { env_vars: many })).rejects.toEqual(badField("env_vars"));
  });

  test("returns a key once when auth_mode becomes api_key, and deletes it when auth_mode becomes none", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor);
    const first = await change(actor, id, { auth_mode: "api_key" });
    expect(first.api_key).toMatch(/^fnk_/);
    expect(await change(actor, id, { auth_mode: "api_key" })).toMatchObject({ api_key: null });
    expect((await rowOf(id)).api_key_hash).toEqual(hashKey(first.api_key!));
    expect(await change(actor, id, { auth_mode: "none" })).toMatchObject({ api_key_hint: null });
    expect(await rowOf(id)).toMatchObject({ auth_mode: "none", api_key_hash: null });
  });

  test("refuses invalid packages, packages above the plan's limit, and changes of fixed fields", async () => {
    const actor = await personOn(db, "starter");
    const { id } = await make(actor, { runtime: "python", handler_code: "def handler(request): pass" });
    await expect(change(actor, id, { dependencies: { requests: "^2" } })).rejects.toEqual(
      badField("dependencies", "requests"),
    );
    await expect(change(actor, id, { memory_mb: 512 })).rejects.toEqual(refusal("plan_limit", 403));
    await expect(change(actor, id, { runtime: "nodejs" })).rejects.toEqual(badField("runtime"));
    await expect(change(actor, id, { node: "us-1" })).rejects.toEqual(badField("node"));
    expect(await change(actor, id, { runtime: "python", node: "eu-1", workspace: "personal" })).toMatchObject(
      {
        runtime: "python",
      },
    );
  });
});

describe("key rotation", () => {
  test("revokes the old key when the new one is committed", async () => {
    const actor = await personOn(db, "pro");
    const made = await make(actor, { auth_mode: "api_key" });
    const next = await rotateKey(app, noInstances, actor, made.id);
    expect(next.api_key).not.toBe(made.api_key);
    expect((await rowOf(made.id)).api_key_hash).toEqual(hashKey(next.api_key!));
  });

  test("refuses to rotate the key of a function without a key", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor);
    await expect(rotateKey(app, noInstances, actor, id)).rejects.toEqual(refusal("no_api_key", 409));
  });
});

describe("function deletion", () => {
  test("hides a deleted function at once, and deletes its row when its instances have ended", async () => {
    const actor = await personOn(db, "starter");
    const made = await make(actor, { auth_mode: "api_key" });
    await deleteFunction(app, actor, made.id);
    await expect(get(app, noInstances, actor, made.id)).rejects.toEqual(refusal("function_not_found", 404));
    await expect(deleteFunction(app, actor, made.id)).rejects.toEqual(refusal("function_not_found", 404));
    expect(await hasJob(db, `function:${made.id}`)).toBe(true);
    expect(await rowOf(made.id)).toMatchObject({ api_key_hash: null });
    const stopped: string[] = [];
    const parts = {
      stop: async (id: string) => {
        await rowOf(id);
        stopped.push(id);
      },
    };
    await removeFunction(app, made.id, parts);
    expect(await rowOf(made.id).catch(() => "gone")).toBe("gone");
    expect(stopped).toEqual([made.id]);
    // The plan allows another function, because one was deleted.
    expect((await make(actor)).status).toBe("created");
  });

  test("retries the removal of a function that cannot be stopped, and ignores the job of a function that is not deleted", async () => {
    const actor = await personOn(db, "pro");
    const { id } = await make(actor);
    const stop = async () => {
      throw new Error("the host is away");
    };
    await removeFunction(app, id, { stop });
    await deleteFunction(app, actor, id);
    await expect(removeFunction(app, id, { stop })).rejects.toThrow("away");
    expect((await rowOf(id)).deleted_at).not.toBeNull();
    await removeFunction(app, id, { stop: async () => {} });
    await removeFunction(app, id, { stop: async () => {} });
  });
});

test("lists only functions of the caller's workspaces, or of the workspace that the request names", async () => {
  const [ada, eve] = [await personOn(db, "pro"), await personOn(db, "pro")];
  const {
    team,
    actors: [member],
  } = await inATeam(db, ada);
  const own = await make(member!);
  const shared = await make(member!, { workspace: team });
  const ids = async (workspace?: string) =>
    (await list(app, noInstances, member!, { workspace, skip: 0, limit: 20 })).items.map(({ id }) => id);
  expect((await ids()).toSorted()).toEqual([own.id, shared.id].toSorted());
  expect(await ids("personal")).toEqual([own.id]);
  expect(await ids(team)).toEqual([shared.id]);
  expect((await list(app, noInstances, eve, { skip: 0, limit: 20 })).items).toEqual([]);
  await expect(get(app, noInstances, eve, own.id)).rejects.toEqual(refusal("function_not_found", 404));
  await expect(change(eve, own.id, { timeout_seconds: 1 })).rejects.toEqual(
    refusal("function_not_found", 404),
  );
});
