import { afterEach, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { getDeployment } from "./deployments.ts";
import { readLogs } from "./logs.ts";
import { toDeployment } from "./schema.ts";
import { stepsOf } from "./states.ts";
import {
  queueDeployment,
  deployAndRun,
  makeProject,
  personWithPlan,
  testDeployments,
} from "./testing/deployments-app.ts";
import { untilAborted } from "./testing/fake-pipeline.ts";

const { db } = await testDatabase();
const host = await testDeployments(db);
const { app } = host;

afterEach(async () => {
  onKillPoint(undefined);
  await host.restart();
});

async function start() {
  const actor = await personWithPlan(db, "team");
  return { actor, project: await makeProject(host, actor) };
}

const progressOf = async (actor: Actor, id: string) =>
  toDeployment(app, await getDeployment(app, actor, id)).progress;

test("shows queued, then each step with a rising percent, and no progress after the end", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  const seen = [await progressOf(actor, id)];
  const see = async () => void seen.push(await progressOf(actor, id));
  Object.assign(host.pipeline.during, { clone: see, build: see, release: see, health: see, route: see });
  await host.run();
  expect(seen.map((progress) => progress?.step)).toEqual([
    "queued",
    ...stepsOf.commit.filter((name) => name !== "detect" && name !== "scan"),
  ]);
  const percents = seen.map((progress) => progress?.percent ?? -1);
  expect(percents[0]).toBe(0);
  expect(percents).toEqual(percents.toSorted((a, b) => a - b));
  expect(seen.at(-2)?.message).toContain("GET / on port 3000");
  expect(await progressOf(actor, id)).toBeNull();
});

test("maps the build's own progress to the build's span of the deployment", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  host.pipeline.during.build = async ({ progress }) => {
    progress(0.5, "Making python:3.13-slim: installing packages");
    await expect.poll(async () => (await progressOf(actor, id))?.percent).toBe(44);
    expect(await progressOf(actor, id)).toEqual({
      step: "build",
      percent: 44,
      message: "Making python:3.13-slim: installing packages",
    });
  };
  await host.run();
  expect((await getDeployment(app, actor, id)).status).toBe("live");
});

test("removes the progress of a deployment that failed", async () => {
  const { actor, project } = await start();
  host.pipeline.during.build = async () => {
    throw new Error("no");
  };
  const { id, status } = await deployAndRun(host, actor, project);
  expect(status).toBe("failed");
  expect(await progressOf(actor, id)).toBeNull();
});

test("shows an interruption after a server was killed, until the next server resumes the deployment", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  expect(await host.dieAt("deploy.built")).toBe(true);
  expect(await progressOf(actor, id)).toMatchObject({ step: "queued", percent: 0 });
  expect((await progressOf(actor, id))?.message).toContain("Interrupted by a restart");
  let seen: string | undefined;
  host.pipeline.during.release = async () => void (seen = (await progressOf(actor, id))?.step);
  await host.run();
  expect(seen).toBe("release");
  expect(await progressOf(actor, id)).toBeNull();
});

test("shows the suspension that interrupted a deployment", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  const workspaceId = actor.workspaces[0]!.id;
  const suspend = (at: Date | null) =>
    db
      .updateTable("workspaces")
      .set({ suspended_at: at, held_since: at })
      .where("id", "=", workspaceId)
      .execute();
  host.pipeline.during.build = async (work) => {
    await suspend(app.clock.now());
    await untilAborted(work);
  };
  await host.run();
  expect((await progressOf(actor, id))?.message).toContain("suspension of the workspace");
  host.pipeline.during.build = async () => {};
  await suspend(null);
  await host.run();
  expect((await getDeployment(app, actor, id)).status).toBe("live");
});

test("logs the cause of a silent step's wait, and logs no cause for a step with output", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  const healthLog = async () =>
    (await readLogs(app, actor, id)).filter(({ step }) => step === "health").map(({ text }) => text);
  host.pipeline.during.health = async () => {
    await expect.poll(healthLog, { timeout: 20_000 }).toHaveLength(1);
  };
  await host.run();
  expect(await healthLog()).toEqual([
    "Waiting for the app: GET / on port 3000 must respond with a status below 500.\n",
  ]);
});
