import { existsSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import { testDatabase } from "../../../test/harness.ts";
import { openGitSecret } from "../git/git-secrets.ts";
import { variablesOf } from "../environments/variables.ts";
import { inATeam, makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import { updateProject } from "./update.ts";
import { checkName } from "./names.ts";
import { countProjects, get, list, readVariables } from "./projects.ts";
import { ProjectCreate, ProjectResponse, ProjectUpdate, readOnlyFields } from "./schema.ts";

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
const change = (actor: Actor, id: string, body: Record<string, unknown>) =>
  updateProject(app, actor, id, ProjectUpdate.parse(body));

/** Inserts a deployment in this state, and makes it live if the state is `live`. */
async function insertDeployment(
  projectId: string,
  environmentId: string,
  status: "live" | "failed" | "building",
) {
  const { id } = await db
    .insertInto("deployments")
    .values({
      project_id: projectId,
      environment_id: environmentId,
      number: 1,
      status,
      trigger_kind: "api",
      trigger_actor: JSON.stringify({ kind: "user", id: "x", label: "x" }),
      steps: "[]",
      commit_sha: "f".repeat(40),
      commit_message: "First",
      commit_author: "Ada",
      finished_at: status === "building" ? null : new Date(),
    } as never)
    .returning("id")
    .executeTakeFirstOrThrow();
  if (status === "live") {
    await db
      .updateTable("environments")
      .set({ live_deployment_id: id })
      .where("id", "=", environmentId)
      .execute();
  }
  return id;
}

describe("project creation", () => {
  test("creates a project with its production environment, and returns the webhook's secret once", async () => {
    const actor = await on("pro");
    const { webhook, ...made } = await makeProject(app, actor, { name: "shop", branch: "trunk" });
    expect(made).toMatchObject({
      name: "shop",
      slug: "shop",
      url: "https://shop.apps.test:8443",
      git_url: "http://127.0.0.1:8080/git/shop.git",
      repo_url: null,
      branch: "trunk",
      root_directory: "/",
      health_check_path: "/",
      status: "created",
      isolation: "native",
      region: "eu-1",
      last_deployment: null,
      custom_domain: null,
      workspace: "personal",
      group_id: null,
    });
    expect(webhook).toEqual({
      url: expect.stringMatching(/^http:\/\/127\.0\.0\.1:8080\/api\/v1\/hooks\/git\/hook_/),
      secret: expect.stringMatching(/^\w{40}$/),
    });
    expect(await get(app, actor, made.id)).toEqual(made);
    expect(JSON.stringify(await get(app, actor, made.id))).not.toContain(webhook!.secret);
    const environments = await db
      .selectFrom("environments")
      .selectAll()
      .where("project_id", "=", made.id)
      .execute();
    expect(environments).toMatchObject([
      {
        id: made.production_environment_id,
        kind: "production",
        branch: "trunk",
        host_label: "shop",
        size: "medium",
      },
    ]);
    expect(existsSync(join(app.config.dataDir, "git", `${made.id}.git`, "HEAD"))).toBe(true);
  });

  test("creates no push address for a repository elsewhere, and a deploy key only for one by ssh", async () => {
    const actor = await on("pro");
    const https = await makeProject(app, actor, {
      repo_url: "https://git.example.com/team/shop.git",
      git_token: "glpat-1",
    });
    expect(https).toMatchObject({ repo_url: "https://git.example.com/team/shop.git", git_url: null });
    const ssh = await makeProject(app, actor, { repo_url: "git@git.example.com:team/shop.git" });
    const rows = await db.selectFrom("projects").selectAll().where("id", "in", [https.id, ssh.id]).execute();
    const [first, second] = [https, ssh].map(({ id }) => rows.find((row) => row.id === id)!);
    expect(openGitSecret(app, "git_token", https.id, first!.git_token_sealed!)).toBe("glpat-1");
    expect(first!.deploy_key_sealed).toBeNull();
    expect(second!.deploy_key_public).toMatch(/^ssh-ed25519 /);
    expect(openGitSecret(app, "deploy_key", ssh.id, second!.deploy_key_sealed!)).toContain(
      "OPENSSH PRIVATE KEY",
    );
    expect(existsSync(join(app.config.dataDir, "git", `${https.id}.git`))).toBe(false);
  });

  test("gives a name to one project of the installation when requests are concurrent", async () => {
    const [one, other] = [await on("pro"), await on("pro")];
    const tries = await Promise.allSettled(
      [one, other, one].map((actor) => makeProject(app, actor, { name: "twice" })),
    );
    const reasons = tries.flatMap((tried) => (tried.status === "rejected" ? [tried.reason] : []));
    expect(reasons).toEqual([refusal("name_taken", 409), refusal("name_taken", 409)]);
    expect(await checkName(app, "twice")).toEqual({ name: "twice", available: false, reason: "taken" });
    expect(await checkName(app, "kontor")).toMatchObject({ available: false, reason: "reserved" });
    expect(await checkName(app, "a--b")).toMatchObject({ available: false, reason: "invalid" });
    expect(await checkName(app, "free-one")).toEqual({ name: "free-one", available: true, reason: null });
  });

  test("does not exceed the plan's limit of each workspace when requests are concurrent", async () => {
    const starter = await on("starter");
    const tries = await Promise.allSettled([1, 2, 3].map(() => makeProject(app, starter)));
    const reasons = tries.flatMap((tried) => (tried.status === "rejected" ? [tried.reason] : []));
    expect(reasons).toHaveLength(2);
    for (const reason of reasons) {
      expect(reason).toMatchObject({
        code: "plan_limit",
        meta: { limit: "projects", allowed: 1, tier_needed: "pro" },
      });
    }
    const { team, actors } = await inATeam(db, starter);
    expect(await makeProject(app, actors[0]!, { workspace: team })).toMatchObject({ workspace: team });
    expect(await countProjects(db, team)).toBe(1);
  });

  test("refuses an unknown region or workspace, a domain of the server, and a suspended workspace", async () => {
    const actor = await on("pro");
    await expect(makeProject(app, actor, { region: "mars" })).rejects.toThrow(badField("region"));
    const stranger = await on("pro");
    await expect(makeProject(app, actor, { workspace: stranger.workspaces[0]!.id })).rejects.toThrow(
      refusal("workspace_not_found", 404),
    );
    for (const custom_domain of ["shop.apps.test", "apps.test", "x.preview.test"]) {
      await expect(makeProject(app, actor, { custom_domain })).rejects.toThrow(badField("custom_domain"));
    }
    const suspended = { ...actor, workspaces: [{ ...actor.workspaces[0]!, suspended: true }] };
    await expect(makeProject(app, suspended)).rejects.toThrow(refusal("account_suspended", 402));
  });

  test.each([
    { repo_url: "http://git.example.com/a.git" },
    { repo_url: "https://user:secret@git.example.com/a.git" },
    { repo_url: "https://token@git.example.com/a.git" },
    { repo_url: "file:///etc" },
    { repo_url: "ext::sh -c id" },
    { repo_url: "ext::sh" },
    { repo_url: "-oProxyCommand=x:y" },
    { repo_url: "git@-oProxyCommand=x:y" },
    { repo_url: "git@host:-x" },
    { repo_url: "ssh://-oProxyCommand=x/y" },
    { repo_url: "ssh://git:secret@host/y" },
    { repo_url: "/etc/passwd" },
    { repo_url: "https://git.example.com/a.git\n--upload-pack=x" },
    { branch: "--upload-pack=x" },
    { branch: "a..b" },
    { root_directory: "../.." },
    { root_directory: "a; rm -rf" },
    { output_directory: "../up" },
    { framework: "nextjz" },
    { start_command: "a\0b" },
    { start_command: "a\nb" },
    { port: 0 },
    { health_check_path: "no-slash" },
    { git_token: "x" },
    { git_token: "x", repo_url: "git@host:a" },
    { custom_domain: "localhost" },
    { custom_domain: "10.0.0.1" },
    { name: "a" },
    { name: "Shop" },
    { name: "shop-" },
    { name: "kontor" },
    { env_vars: { "A B": "1" } },
    { env_vars: { A: "a\0" } },
    { env_vars: { A: "x".repeat(65_537) } },
    { env_vars: Object.fromEntries(Array.from({ length: 201 }, (_, n) => [`A${n}`, ""])) },
    { unknown: 1 },
  ])("refuses a project with %j", (body) => {
    expect(ProjectCreate.safeParse({ name: "shop", ...body }).success).toBe(false);
  });

  test.each([
    { repo_url: "https://git.example.com/a.git" },
    { repo_url: "https://git.example.com:8443/team/a", git_token: "x" },
    { repo_url: "ssh://git@git.example.com:2222/a.git" },
    { repo_url: "git@git.example.com:team/a.git" },
    { repo_url: "git.example.com:a.git" },
    { root_directory: "apps/web" },
    { custom_domain: "WWW.Example.com" },
    { framework: "nextjs", port: 65_535 },
  ])("accepts a project with %j", (body) => {
    expect(ProjectCreate.safeParse({ name: "shop", ...body }).error).toBeUndefined();
  });
});

describe("project lists and reads", () => {
  test("lists the projects of all workspaces of the caller, newest first, in pages", async () => {
    const { team, actors } = await inATeam(db, await on("pro"), await on("pro"));
    const [one, other] = actors as [Actor, Actor];
    const own = await makeProject(app, one);
    const shared = await makeProject(app, other, { workspace: team });
    const hidden = await makeProject(app, other);
    const all = await list(app, one, { skip: 0, limit: 20 });
    expect(all).toMatchObject({ total: 2, skip: 0, limit: 20 });
    expect(all.items.map(({ id }) => id).toSorted()).toEqual([own.id, shared.id].toSorted());
    const pages = [
      ...(await list(app, one, { skip: 0, limit: 1 })).items,
      ...(await list(app, one, { skip: 1, limit: 1 })).items,
    ];
    expect(pages).toEqual(all.items);
    await expect(get(app, one, hidden.id)).rejects.toThrow(refusal("project_not_found", 404));
    await expect(readVariables(app, one, hidden.id)).rejects.toThrow(refusal("project_not_found", 404));
  });

  test("shows the status of the production environment as visitors experience it", async () => {
    const actor = await on("pro");
    const made = await makeProject(app, actor);
    const environment = made.production_environment_id;
    const id = await insertDeployment(made.id, environment, "failed");
    expect(await get(app, actor, made.id)).toMatchObject({
      status: "failed",
      last_deployment: {
        id,
        environment_id: environment,
        number: 1,
        status: "failed",
        commit: { sha: "f".repeat(40), message: "First", author: "Ada" },
      },
    });
    await db.deleteFrom("deployments").where("id", "=", id).execute();
    const running = await insertDeployment(made.id, environment, "building");
    expect(await get(app, actor, made.id)).toMatchObject({ status: "building" });
    await db.deleteFrom("deployments").where("id", "=", running).execute();
    await insertDeployment(made.id, environment, "live");
    expect(await get(app, actor, made.id)).toMatchObject({ status: "live" });
    await db
      .updateTable("environments")
      .set({ asleep_since: new Date() })
      .where("id", "=", environment)
      .execute();
    expect(await get(app, actor, made.id)).toMatchObject({ status: "asleep" });
  });
});

describe("project updates", () => {
  test("accepts a response as an update, and changes nothing", async () => {
    const actor = await on("pro");
    const body = { custom_domain: "back.example.com", repo_url: "git@git.example.com:a.git", port: 80 };
    const { webhook: _, ...made } = await makeProject(app, actor, body);
    const sent = Object.fromEntries(
      Object.entries(made).filter(([field]) => !readOnlyFields.includes(field)),
    );
    const { updated_at: _at, ...after } = await change(actor, made.id, sent);
    expect({ ...after, updated_at: made.updated_at }).toEqual(made);
    expect(ProjectResponse.safeParse({ ...after, updated_at: made.updated_at }).success).toBe(true);
  });

  test("sets a variable to a string, removes it with null, and lets environments inherit it", async () => {
    const actor = await on("pro");
    const made = await makeProject(app, actor, { env_vars: { A: "1", B: "2" } });
    await change(actor, made.id, { env_vars: { A: "3", B: null, C: "4" } });
    expect(await readVariables(app, actor, made.id)).toEqual({ A: "3", C: "4" });
    expect(await variablesOf(app, db, made.production_environment_id)).toEqual({ A: "3", C: "4" });
    const many = Object.fromEntries(Array.from({ length: 199 }, (_, n) => [`N${n}`, ""]));
    await expect(change(actor, made.id, { env_vars: many })).rejects.toThrow(badField("env_vars"));
    await change(actor, made.id, { env_vars: { A: null, C: null } });
    expect(await readVariables(app, actor, made.id)).toEqual({});
  });

  test("shares its branch with the production environment", async () => {
    const actor = await on("pro");
    const made = await makeProject(app, actor);
    expect(await change(actor, made.id, { branch: "next" })).toMatchObject({ branch: "next" });
    const row = await db
      .selectFrom("environments")
      .select("branch")
      .where("id", "=", made.production_environment_id)
      .executeTakeFirstOrThrow();
    expect(row.branch).toBe("next");
  });

  test("changes the host with the name while nothing is deployed, and refuses a name that is taken", async () => {
    const actor = await on("pro");
    const made = await makeProject(app, actor);
    const other = await makeProject(app, actor);
    await expect(change(actor, made.id, { name: other.name })).rejects.toThrow(refusal("name_taken", 409));
    expect(await change(actor, made.id, { name: "renamed" })).toMatchObject({
      name: "renamed",
      url: "https://renamed.apps.test:8443",
    });
    expect(await checkName(app, made.name)).toMatchObject({ available: true });
    await insertDeployment(made.id, made.production_environment_id, "live");
    await expect(change(actor, made.id, { name: "again" })).rejects.toThrow(refusal("project_deployed", 409));
    // The current name is not a change.
    expect(await change(actor, made.id, { name: "renamed", port: 81 })).toMatchObject({ port: 81 });
  });

  test("gives a verified domain to one project, checks it again after a rename, and frees it when it is set to null", async () => {
    const actor = await on("pro");
    const [one, other] = [await makeProject(app, actor), await makeProject(app, actor)];
    expect(await change(actor, one.id, { custom_domain: "www.example.com" })).toMatchObject({
      custom_domain: {
        hostname: "www.example.com",
        status: "pending",
        cname_target: `${one.name}.apps.test`,
        checked_at: null,
        error: null,
      },
    });
    await change(actor, other.id, { custom_domain: "www.example.com" });
    await change(actor, other.id, { custom_domain: null });
    await db.updateTable("projects").set({ domain_status: "verified" }).where("id", "=", one.id).execute();
    await expect(change(actor, other.id, { custom_domain: "www.example.com" })).rejects.toThrow(
      refusal("domain_taken", 409),
    );
    expect(await change(actor, one.id, { port: 1 })).toMatchObject({ custom_domain: { status: "verified" } });
    expect(await change(actor, one.id, { name: "with-domain" })).toMatchObject({
      custom_domain: { status: "pending", cname_target: "with-domain.apps.test", checked_at: null },
    });
    expect(await change(actor, one.id, { custom_domain: null })).toMatchObject({ custom_domain: null });
    await change(actor, other.id, { custom_domain: "www.example.com" });
  });

  test("deletes the git token and the deploy key when the repository moves to another host or port", async () => {
    const actor = await on("pro");
    const made = await makeProject(app, actor, {
      repo_url: "https://git.example.com/a",
      git_token: "secret",
    });
    const row = () =>
      db.selectFrom("projects").selectAll().where("id", "=", made.id).executeTakeFirstOrThrow();
    await change(actor, made.id, { repo_url: "https://git.example.com/b" });
    expect((await row()).git_token_sealed).not.toBeNull();
    await change(actor, made.id, { repo_url: "https://git.example.com:443/c" });
    expect((await row()).git_token_sealed).not.toBeNull();
    await change(actor, made.id, { repo_url: "https://git.example.com:8443/b" });
    expect((await row()).git_token_sealed).toBeNull();
    await change(actor, made.id, { git_token: "secret" });
    await change(actor, made.id, { repo_url: "https://evil.example.com:8443/b" });
    expect((await row()).git_token_sealed).toBeNull();
    await change(actor, made.id, { repo_url: "git@git.example.com:b" });
    const first = await row();
    expect(first.deploy_key_public).toMatch(/^ssh-ed25519/);
    await change(actor, made.id, { repo_url: "ssh://git@git.example.com:22/b" });
    expect((await row()).deploy_key_public).toBe(first.deploy_key_public);
    await change(actor, made.id, { repo_url: "ssh://git@git.example.com:2222/b" });
    expect((await row()).deploy_key_public).not.toBe(first.deploy_key_public);
    await change(actor, made.id, { repo_url: "git@evil.example.com:b" });
    expect((await row()).deploy_key_public).not.toBe(first.deploy_key_public);
    await expect(change(actor, made.id, { git_token: "x" })).rejects.toThrow(badField("git_token"));
    expect(await change(actor, made.id, { repo_url: null })).toMatchObject({
      git_url: `http://127.0.0.1:8080/git/${made.name}.git`,
    });
    expect(existsSync(join(app.config.dataDir, "git", `${made.id}.git`, "HEAD"))).toBe(true);
  });

  test("refuses a change of workspace, and returns 404 to another workspace", async () => {
    const { team, actors } = await inATeam(db, await on("pro"));
    const actor = actors[0]!;
    const made = await makeProject(app, actor);
    await expect(change(actor, made.id, { workspace: team })).rejects.toThrow(badField("workspace"));
    await expect(change(await on("pro"), made.id, { port: 1 })).rejects.toThrow(
      refusal("project_not_found", 404),
    );
  });
});
