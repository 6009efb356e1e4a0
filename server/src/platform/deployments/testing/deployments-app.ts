/** App for tests of this folder: a real database, a fake clock, a user with a project, and a fake pipeline. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { Config, ConfigKey } from "#config.ts";
import type { Db } from "#schema.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { makePerson } from "../../../../test/factories.ts";
import { silentLog, type TestClock, testClock, testConfig, testSecrets } from "../../../../test/harness.ts";
import { createProject } from "../../projects/create.ts";
import { ProjectCreate } from "../../projects/schema.ts";
import { deploy } from "../request/deploy.ts";
import { type DeploymentRow, getDeployment } from "../deployments.ts";
import { Deployments } from "../worker/deployments-worker.ts";
import { newStage, FakePipeline, type Stage } from "./fake-pipeline.ts";

const hostId = "host_test";

export interface TestDeployments {
  app: App;
  clock: TestClock;
  stage: Stage;
  pipeline: FakePipeline;
  deployments: Deployments;
  /** Runs all queued deployments. */
  run(): Promise<void>;
  /**
   * Stops the server at the named kill point and starts another, which runs no deployment yet. Returns false if the
   * point is not reached.
   */
  dieAt(point: string): Promise<boolean>;
  /** Replaces the server. Apps that serve no environment are removed, as at a real start of the server. */
  restart(): Promise<void>;
}

export async function testDeployments(
  db: Db,
  options: { config?: Partial<Record<ConfigKey, string>> } = {},
): Promise<TestDeployments> {
  const dataDir = await mkdtemp(join(tmpdir(), "kontor-deployments-"));
  afterAll(() => rm(dataDir, { recursive: true, force: true }));
  const clock = testClock();
  const config: Config = { ...testConfig(options.config), dataDir };
  await db.insertInto("regions").values({ code: "eu-1", name: "Here" }).execute();
  await db
    .insertInto("hosts")
    .values({
      id: hostId,
      region: "eu-1",
      address: "here",
      state: "ready",
      lease_until: clock.now(),
      cpu_class: "any",
      runtime_builds: [],
      vcpus: 1,
      memory_bytes: 1,
      disk_bytes: 1,
    })
    .execute();
  const host = { id: hostId };
  const app = {
    config,
    db,
    clock,
    log: silentLog,
    secrets: testSecrets(),
    machines: { host },
  } as unknown as App;
  const stage = newStage();
  const stops: AbortController[] = [];
  afterAll(() => stops.forEach((stop) => stop.abort()));
  const begin = () => {
    stops.push(new AbortController());
    const pipeline = new FakePipeline(stage);
    return { pipeline, deployments: new Deployments(app, pipeline) };
  };
  const test: TestDeployments = {
    app,
    clock,
    stage,
    ...begin(),
    run: () => test.deployments.run(stops.at(-1)!.signal),
    dieAt: async (point) => {
      const there = Promise.withResolvers<boolean>();
      onKillPoint(async (at) => {
        if (at !== point) return;
        there.resolve(true);
        await new Promise(() => {});
      });
      const isDead = await Promise.race([there.promise, test.run().then(() => false)]);
      onKillPoint(undefined);
      await test.restart();
      return isDead;
    },
    restart: async () => {
      stage.candidates.clear();
      Object.assign(test, begin());
      await test.deployments.resetProgress();
      await test.deployments.begin();
    },
  };
  await test.deployments.begin();
  return test;
}

/** Creates a user on the plan. Returns the actor of a token with full access. */
export async function personWithPlan(db: Db, plan: Plan): Promise<Actor> {
  const { user, workspace } = await makePerson(db, { workspace: { plan } });
  return {
    kind: "api_token",
    id: "tok_test",
    label: user.email,
    role: null,
    userId: user.id,
    scopes: null,
    tokenId: "tok_test",
    workspaces: [
      {
        id: workspace.id,
        kind: "personal",
        role: "owner",
        plan,
        sandboxTier: workspace.sandbox_tier,
        suspended: false,
      },
    ],
    ip: null,
  };
}

let made = 0;

export interface TestProject {
  id: string;
  environmentId: string;
}

export async function makeProject(
  { app }: TestDeployments,
  actor: Actor,
  input: Record<string, unknown> = {},
): Promise<TestProject> {
  const body = ProjectCreate.parse({ name: `project-${(made += 1)}`, ...input });
  const { id, production_environment_id } = await createProject(app, actor, body);
  return { id, environmentId: production_environment_id };
}

/** Queues a deployment as a request to the API does. */
export function queueDeployment(
  { app }: TestDeployments,
  actor: Actor,
  project: TestProject,
): Promise<DeploymentRow> {
  return deploy(app, actor, { project, environmentId: project.environmentId, trigger: "api" });
}

/** Queues a deployment and runs it. */
export async function deployAndRun(
  test: TestDeployments,
  actor: Actor,
  project: TestProject,
): Promise<DeploymentRow> {
  const { id } = await queueDeployment(test, actor, project);
  await test.run();
  return getDeployment(test.app, actor, id);
}
