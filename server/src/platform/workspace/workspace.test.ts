import { beforeAll, expect, test } from "vitest";
import { listActivity } from "#accounts/activity/list.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createEnvironment } from "../environments/create.ts";
import { EnvironmentCreate, EnvironmentUpdate } from "../environments/schema.ts";
import { updateEnvironment } from "../environments/update.ts";
import { list } from "../projects/projects.ts";
import { ProjectUpdate } from "../projects/schema.ts";
import { updateProject } from "../projects/update.ts";
import { inATeam, makeProject, personOn, type ProjectsApp, projectsApp } from "../testing/platform-app.ts";
import type { WorkspaceSections } from "./workspace-sections.ts";
import { DashboardSummary, WorkspaceSnapshot } from "./schema.ts";
import { dashboard, snapshot } from "./workspace.ts";

const { db } = await testDatabase();
let app: ProjectsApp;

beforeAll(async () => {
  app = await projectsApp(db);
});

const none = async () => ({ items: [], total: 0 });
const sections: WorkspaceSections = { sandboxes: none, workers: none, pendingApprovals: none };
const at = new Date("2030-01-01T00:00:00Z");

/** Sections of other APIs with more items than the limits. Each function applies its limit. */
const busy: WorkspaceSections = {
  sandboxes: async (_db, _id, limit) => ({
    items: Array.from({ length: limit }, (_, n) => ({
      id: `sbx_${n}`,
      status: "running" as const,
      template: "debian-12",
      size: "small",
      region: "eu-1",
      created_at: at,
      expires_at: at,
    })),
    total: 1000,
  }),
  workers: async (_db, _id, limit) => ({
    items: Array.from({ length: limit }, (_, n) => ({
      id: `agt_${n}`,
      name: "helper",
      worker_id: "99999999-9999-4999-8999-999999999999",
      status: "idle",
      last_run: { run_id: "run_1", status: "completed", created_at: at, finished_at: null },
    })),
    total: 1000,
  }),
  pendingApprovals: async (_db, _id, limit) => ({
    items: Array.from({ length: limit }, (_, n) => ({
      request_id: `apr_${n}`,
      run_id: "run_1",
      agent: "helper",
      tool: "exec",
      created_at: at,
      expires_at: at,
    })),
    total: 1000,
  }),
};

test("returns one workspace's apps with their environments, and the sections of other APIs", async () => {
  const { team, actors } = await inATeam(db, await personOn(db, "pro"));
  const actor = actors[0]!;
  const own = await makeProject(app, actor);
  const shared = await makeProject(app, actor, { workspace: team });
  const personal = await snapshot(app, actor, "personal", busy);
  expect(WorkspaceSnapshot.safeParse(personal).error).toBeUndefined();
  expect(personal).toMatchObject({
    workspace: "personal",
    plan: "pro",
    apps: {
      total: 1,
      items: [
        {
          id: own.id,
          name: own.name,
          status: "created",
          environments: { total: 1, items: [{ is_production: true }] },
        },
      ],
    },
    sandboxes: { total: 1000 },
    workers: { total: 1000 },
    pending_approvals: { total: 1000 },
  });
  const lengths = [personal.sandboxes, personal.workers, personal.pending_approvals].map(
    ({ items }) => items.length,
  );
  expect(lengths).toEqual([50, 50, 20]);
  expect(await snapshot(app, actor, undefined, sections)).toMatchObject({ workspace: "personal" });
  expect(await snapshot(app, actor, team, sections)).toMatchObject({
    workspace: team,
    plan: "team",
    apps: { total: 1, items: [{ id: shared.id }] },
  });
  await expect(snapshot(app, await personOn(db, "pro"), team, sections)).rejects.toThrow(
    expect.objectContaining({ code: "workspace_not_found", status: 404 }),
  );
});

test("limits every list and returns its total", async () => {
  const { team, actors } = await inATeam(db, await personOn(db, "team"));
  const actor = actors[0]!;
  const project = await makeProject(app, actor, { workspace: team });
  for (let n = 0; n < 24; n++) {
    const body = { name: `e${n}`, kind: "preview", branch: "main" };
    await createEnvironment(app, actor, project.id, EnvironmentCreate.parse(body));
  }
  const { apps, activity } = await snapshot(app, actor, team, sections);
  expect(apps.items[0]!.environments).toMatchObject({ total: 25 });
  expect(apps.items[0]!.environments.items).toHaveLength(20);
  expect(activity.total).toBe(25);
  expect(activity.items).toHaveLength(20);
  // The workspace has more projects than its current plan allows.
  await db
    .insertInto("projects")
    .values(
      Array.from({ length: 54 }, (_, n) => ({
        workspace_id: team,
        name: `many-${n}`,
        region: "eu-1",
        hook_id: `many-${n}`,
        hook_secret_sealed: Buffer.alloc(1),
      })) as never,
    )
    .execute();
  await db
    .insertInto("environments")
    .columns(["project_id", "name", "kind", "branch", "host_label", "size"])
    .expression((from) =>
      from
        .selectFrom("projects")
        .select((eb) => [
          "id",
          eb.val("production").as("name"),
          eb.val("production").as("kind"),
          eb.val("main").as("branch"),
          "name as host_label",
          eb.val("small").as("size"),
        ])
        .where("name", "like", "many-%"),
    )
    .execute();
  const many = await snapshot(app, actor, team, sections);
  expect(many.apps.total).toBe(55);
  expect(many.apps.items).toHaveLength(50);
});

test("returns in the dashboard the use of each limit of the plan", async () => {
  const { team, actors } = await inATeam(db, await personOn(db, "pro"), await personOn(db, "pro"));
  const actor = actors[0]!;
  const project = await makeProject(app, actor);
  await db
    .insertInto("deployments")
    .values(
      Array.from({ length: 12 }, (_, n) => ({
        project_id: project.id,
        environment_id: project.production_environment_id,
        number: n + 1,
        status: "failed",
        trigger_kind: "api",
        trigger_actor: JSON.stringify({ kind: "user", id: "x", label: "x" }),
        steps: "[]",
        created_at: new Date(at.getTime() + n),
        finished_at: at,
      })) as never,
    )
    .execute();
  const personal = await dashboard(app, actor, undefined);
  expect(DashboardSummary.safeParse(personal).error).toBeUndefined();
  expect(personal).toMatchObject({
    workspace: "personal",
    project_count: 1,
    plan: {
      name: "pro",
      limits: {
        projects: { used: 1, allowed: 5 },
        addons: { used: 0, allowed: 2 },
        api_tokens: { used: 0, allowed: 5 },
      },
    },
  });
  expect(personal.recent_deployments.map(({ number }) => number)).toEqual([12, 11, 10, 9, 8, 7, 6, 5, 4, 3]);
  expect(personal.recent_deployments[0]).toMatchObject({
    project_name: project.name,
    environment_name: "production",
  });
  expect(await dashboard(app, actor, team)).toMatchObject({
    project_count: 0,
    recent_deployments: [],
    plan: { name: "team", limits: { team_members: { used: 2, allowed: 3 } } },
  });
});

test("returns no variable, token or secret of a project in lists, snapshot, dashboard or activity", async () => {
  const actor = await personOn(db, "team");
  const project = await makeProject(app, actor, {
    repo_url: "https://git.example.com/a",
    git_token: "canary-token-1",
    env_vars: { CANARY: "canary-project" },
  });
  const id = project.production_environment_id;
  await updateProject(
    app,
    actor,
    project.id,
    ProjectUpdate.parse({ git_token: "canary-token-2", env_vars: { MORE: "canary-more" } }),
  );
  const vars = EnvironmentUpdate.parse({ env_vars: { IN: "canary-environment" } });
  await updateEnvironment(app, actor, project.id, id, vars);
  await createEnvironment(
    app,
    actor,
    project.id,
    EnvironmentCreate.parse({
      name: "staging",
      kind: "staging",
      branch: "main",
      env_vars: { A: "canary-staging" },
    }),
  );
  const text = JSON.stringify([
    await list(app, actor, { skip: 0, limit: 100 }),
    await snapshot(app, actor, undefined, sections),
    await dashboard(app, actor, undefined),
    await listActivity(app, actor, { skip: 0, limit: 100 }),
  ]);
  expect(text).toContain(project.id);
  expect(text).not.toContain("canary");
  expect(text).not.toContain(project.webhook!.secret);
  const row = await db
    .selectFrom("projects")
    .selectAll()
    .where("id", "=", project.id)
    .executeTakeFirstOrThrow();
  const stored = Object.values(row).map((value) =>
    Buffer.isBuffer(value) ? value.toString("latin1") : JSON.stringify(value),
  );
  expect(stored.join(" ")).not.toContain("canary");
});
