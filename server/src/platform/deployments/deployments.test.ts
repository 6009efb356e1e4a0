import { readdir } from "node:fs/promises";
import pg from "pg";
import { afterEach, describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import { listActivity } from "#accounts/activity/list.ts";
import { listNotifications } from "#accounts/notifications/notifications.ts";
import { hasJob } from "#jobs/jobs.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { testDatabase } from "../../../test/harness.ts";
import { createEnvironment } from "../environments/create.ts";
import { updateEnvironment } from "../environments/update.ts";
import { lockImages } from "../images/store.ts";
import { cancelDeployment } from "./request/cancel.ts";
import { workDirectory } from "./worker/run-deployment.ts";
import { DeploymentFailed } from "./worker/reasons.ts";
import { deploy, deployPush } from "./request/deploy.ts";
import { deploymentStats, getDeployment } from "./deployments.ts";
import { followDeployment, readBuildLog, readLogs } from "./logs.ts";
import { restart } from "./request/restart.ts";
import { rollback } from "./request/rollback.ts";
import { finishLateScan, LateScans, lateScanTask } from "./pipeline/scan-step.ts";
import { toDeployment, toStats } from "./schema.ts";
import { stepsOf } from "./states.ts";
import { listDeployments, takeNext } from "./store.ts";
import {
  queueDeployment,
  deployAndRun,
  makeProject,
  personWithPlan,
  testDeployments,
  type TestProject,
} from "./testing/deployments-app.ts";
import { untilAborted } from "./testing/fake-pipeline.ts";

const { db } = await testDatabase();
const host = await testDeployments(db);
const { app, stage } = host;

afterEach(async () => {
  onKillPoint(undefined);
  await host.restart();
});

async function start(plan: "starter" | "pro" | "team" = "team") {
  const actor = await personWithPlan(db, plan);
  return { actor, project: await makeProject(host, actor) };
}

const get = (actor: Actor, { id }: { id: string }) => getDeployment(app, actor, id);
const push = (actor: Actor, project: TestProject, sha: string) =>
  deployPush(app, { projectId: project.id, branch: "main", sha, actor });
/** Status of every step but the scan, which runs in parallel and has tests of its own. */
const statusesOf = (row: { steps: { name: string; status: string }[] }) =>
  row.steps.filter(({ name }) => name !== "scan").map(({ name, status }) => `${name} ${status}`);
const allSucceeded = stepsOf.commit.filter((name) => name !== "scan").map((name) => `${name} succeeded`);
const scanOf = (row: { steps: { name: string; status: string }[] }) =>
  row.steps.find(({ name }) => name === "scan")?.status;

describe("deployments", () => {
  test("runs all steps of a deployment, stores their output, and makes it live", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    host.pipeline.during.health = async () => {
      await expect.poll(async () => scanOf(await get(actor, { id }))).toBe("succeeded");
    };
    await host.run();
    const row = await get(actor, { id });
    expect(row).toMatchObject({ status: "live", number: 1, error: null, attempts: 1 });
    expect(statusesOf(row)).toEqual(allSucceeded);
    expect(row.commit_message).toBe("a change");
    expect(row.run).toEqual({ argv: ["serve"], port: 3000, health_check_path: "/" });
    expect(stage.serving.get(project.environmentId)).toBe(row.id);
    const logs = await readLogs(app, actor, row.id);
    expect(logs.map(({ step }) => step)).toEqual(["clone", "detect", "scan"]);
    expect(scanOf(row)).toBe("succeeded");
    expect(logs[0]!.text).toBe("fetching main\n");
    expect(await readdir(workDirectory(app))).toEqual([]);
  });

  test("marks the replaced deployment as superseded, and records both in the audit log", async () => {
    const { actor, project } = await start();
    const first = await deployAndRun(host, actor, project);
    const second = await deployAndRun(host, actor, project);
    expect((await get(actor, first)).status).toBe("superseded");
    expect(second).toMatchObject({ status: "live", number: 2 });
    const { items } = await listActivity(app, actor, { skip: 0, limit: 2 });
    expect(items.map(({ action }) => action)).toEqual(["deployment.succeeded", "deployment.created"]);
    const [news] = await listNotifications(app, actor);
    expect(news).toMatchObject({ kind: "deploy_succeeded", target: { kind: "deployment", id: second.id } });
  });

  test.each(["user", "api_token", "worker"] as const)(
    "names the user of a deployment by %s, until the account is deleted",
    async (kind) => {
      const { actor, project } = await start();
      const other = await personWithPlan(db, "team");
      const by: Actor = { ...other, kind, id: kind === "user" ? other.userId : "id", label: other.label };
      const { id } = await queueDeployment(host, by, project);
      const readTriggerActor = async () => toDeployment(app, await get(actor, { id })).trigger.actor;
      const user = { id: other.userId, name: expect.any(String), email: other.label };
      expect(await readTriggerActor()).toEqual({ kind, id: by.id, label: other.label, user });
      const stored = await db.selectFrom("deployments").selectAll().where("id", "=", id).execute();
      expect(JSON.stringify(stored).includes(other.label)).toBe(kind !== "user");
      await db.deleteFrom("users").where("id", "=", other.userId).execute();
      expect(await readTriggerActor()).toMatchObject({
        label: kind === "user" ? "deleted account" : other.label,
        user: null,
      });
      await host.run();
    },
  );

  test("refuses a deployment while another of its environment is queued or running", async () => {
    const { actor, project } = await start();
    const first = await queueDeployment(host, actor, project);
    await expect(queueDeployment(host, actor, project)).rejects.toMatchObject({
      code: "deployment_in_progress",
      meta: { deployment_id: first.id },
    });
    host.pipeline.during.build = async () => {
      await expect(queueDeployment(host, actor, project)).rejects.toMatchObject({
        code: "deployment_in_progress",
      });
    };
    await host.run();
    expect((await get(actor, first)).status).toBe("live");
    expect((await deployAndRun(host, actor, project)).status).toBe("live");
  });

  test("prefers the owner's settings to detected values", async () => {
    const { actor } = await start();
    const project = await makeProject(host, actor, {
      port: 4000,
      health_check_path: "/up",
      root_directory: "/",
    });
    const { run } = await deployAndRun(host, actor, project);
    expect(run).toMatchObject({ port: 4000, health_check_path: "/up" });
  });

  test("streams a deployment's log and states until the deployment ends", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    const news = followDeployment(app, id, new AbortController().signal);
    const { value: first } = await news.next();
    expect(first).toMatchObject({ status: "queued" });
    const rest = Array.fromAsync(news);
    await host.run();
    const told = await rest;
    expect(told.at(-1)).toMatchObject({ status: "live", error: null });
    expect(told.some((one) => "text" in one && one.text === "fetching main\n")).toBe(true);
    const [one] = told;
    const later = followDeployment(app, id, new AbortController().signal, one!.seq);
    expect((await Array.fromAsync(later)).every(({ seq }) => seq >= one!.seq)).toBe(true);
  });
});

test("starts a payer's single deployment before another payer's fifteen waiting deployments", async () => {
  const busy = await personWithPlan(db, "team");
  const waiting: string[] = [];
  for (let n = 0; n < 15; n += 1) {
    waiting.push((await queueDeployment(host, busy, await makeProject(host, busy))).id);
    host.clock.advance(1);
  }
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  host.pipeline.during.health = async () => host.clock.advance(1);
  await host.run();
  const rows = await db
    .selectFrom("deployments")
    .select("id")
    .where("id", "in", [...waiting, id])
    .orderBy("started_at")
    .execute();
  expect(rows.slice(0, 3).map((row) => row.id)).toEqual([waiting[0], id, waiting[1]]);
});

test("keeps one build slot free while another payer has a recent deployment, and uses every slot otherwise", async () => {
  const people = [await personWithPlan(db, "team"), await personWithPlan(db, "team")] as const;
  for (let n = 0; n < 5; n += 1) await queueDeployment(host, people[0], await makeProject(host, people[0]));
  const take = (recent: readonly string[], executing: readonly string[]) =>
    takeNext(db, { id: "host_test", atOnce: 4, executing, recent }, host.clock.now());
  const other = people[1].userId;
  const taken: string[] = [];
  for (let n = 0; n < 3; n += 1) taken.push((await take([other], taken))!.id);
  expect(await take([other], taken)).toBeUndefined();
  taken.push((await take([people[0].userId], taken))!.id);
  expect(await take([], taken)).toBeUndefined();
  // The next server resumes the deployments even without a free slot.
  expect(await take([other], taken.slice(1))).toMatchObject({ id: taken[0] });
  await db
    .updateTable("deployments")
    .set({ status: "cancelled", finished_at: host.clock.now() })
    .where("status", "in", ["queued", "building"])
    .execute();
});

async function hold({ workspaces: [workspace] }: Actor, since: Date | null) {
  await db.updateTable("workspaces").set({ held_since: since }).where("id", "=", workspace!.id).execute();
}

test("keeps a suspended workspace's deployment queued, and runs another workspace's", async () => {
  const [late, other] = [await start(), await start()];
  const [waiting, next] = [
    await queueDeployment(host, late.actor, late.project),
    await queueDeployment(host, other.actor, other.project),
  ];
  await hold(late.actor, host.clock.now());
  await host.run();
  expect(await get(late.actor, waiting)).toMatchObject({ status: "queued", attempts: 0 });
  expect(await get(other.actor, next)).toMatchObject({ status: "live" });
  await hold(late.actor, null);
  await host.run();
  expect(await get(late.actor, waiting)).toMatchObject({ status: "live" });
});

test("stops a deployment when its workspace is suspended, and resumes it afterwards", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  const builds = stage.builds;
  host.pipeline.during.health = async (work) => {
    await hold(actor, host.clock.now());
    await untilAborted(work);
  };
  await host.run();
  const held = await get(actor, { id });
  expect(held).toMatchObject({ status: "deploying", error: null, attempts: 0 });
  expect(statusesOf(held)).toContain("health pending");
  expect(stage.candidates.size).toBe(0);
  host.pipeline.during.health = async () => {};
  await host.run();
  expect(await get(actor, { id })).toMatchObject({ status: "deploying" });
  await hold(actor, null);
  await host.run();
  expect(await get(actor, { id })).toMatchObject({ status: "live", attempts: 1 });
  expect(stage.builds).toBe(builds + 1);
});

test("does not fail a deployment when its app stops responding because of a suspension", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  host.pipeline.during.health = async () => {
    await hold(actor, host.clock.now());
    throw new DeploymentFailed("nothing answers.");
  };
  await host.run();
  expect(await get(actor, { id })).toMatchObject({ status: "deploying", error: null });
  host.pipeline.during.health = async () => {};
  await hold(actor, null);
  await host.run();
  expect(await get(actor, { id })).toMatchObject({ status: "live" });
});

test("polls a deployment once for all followers", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  const leave = new AbortController();
  const readers = Array.from({ length: 40 }, () => followDeployment(app, id, leave.signal));
  const sent: string[] = [];
  const client = pg.Client.prototype as unknown as { query: (...given: unknown[]) => unknown };
  const { query } = client;
  client.query = function (this: unknown, ...given: unknown[]) {
    const [statement] = given as [string | { text: string }];
    sent.push(typeof statement === "string" ? statement : statement.text);
    return query.apply(this, given);
  };
  const count = (part: string) => sent.filter((text) => text.includes(part)).length;
  const reads = () => count('from "deployment_logs"');
  try {
    const first = await Promise.all(readers.map((reader) => reader.next()));
    expect(first.every(({ value }) => "status" in value! && value.status === "queued")).toBe(true);
    expect(reads()).toBe(1);
    const ends = readers.map(async (reader) => (await Array.fromAsync(reader)).at(-1));
    // While nothing changes, all followers share one polling query.
    await expect.poll(() => count('select "id", "status", "log_bytes"')).toBeGreaterThan(4);
    expect(reads()).toBeLessThan(5);
    await host.run();
    for (const end of await Promise.all(ends)) expect(end).toMatchObject({ status: "live" });
    expect(reads()).toBeLessThan(readers.length);
  } finally {
    client.query = query;
    leave.abort();
  }
});

test.each([
  [["nginx", "-c", "/etc/nginx/site.conf"], 404, true],
  [["nginx", "-c", "/etc/nginx/site.conf"], 200, false],
  [["node", "server.js"], 404, false],
])(
  "warns of a 404 response of a site, but not of an API: %j, status %i, %s",
  async (argv, status, isWarned) => {
    const { actor, project } = await start();
    Object.assign(host.pipeline, { argv, status });
    const row = await deployAndRun(host, actor, project);
    expect(row.status).toBe("live");
    const logs = await readLogs(app, actor, row.id);
    const said = logs.filter(({ step }) => step === "health").map(({ text }) => text);
    expect(said.join("").includes("Set output_directory")).toBe(isWarned);
  },
);

describe("deployments by a push", () => {
  test("queues a push while a deployment runs, and replaces that push by a newer one", async () => {
    const { actor, project } = await start();
    const first = await queueDeployment(host, actor, project);
    let waiting: string[] = [];
    host.pipeline.during.health = async () => {
      host.pipeline.during.health = async () => {};
      const one = await push(actor, project, "1".repeat(40));
      const two = await push(actor, project, "2".repeat(40));
      waiting = [...one, ...two].map(({ id }) => id);
    };
    await host.run();
    expect((await get(actor, first)).status).toBe("superseded");
    expect(await get(actor, { id: waiting[0]! })).toMatchObject({
      status: "cancelled",
      error: "A newer push replaced it.",
      started_at: null,
    });
    expect(await get(actor, { id: waiting[1]! })).toMatchObject({
      status: "live",
      commit_sha: "2".repeat(40),
      trigger_kind: "push",
    });
  });

  test("deploys no push when auto_deploy is off, or when no environment follows the branch", async () => {
    const { actor } = await start();
    const manual = await makeProject(host, actor, { auto_deploy: false });
    expect(await push(actor, manual, "1".repeat(40))).toEqual([]);
    const other = { projectId: manual.id, branch: "next", sha: "1".repeat(40), actor };
    expect(await deployPush(app, other)).toEqual([]);
  });
});

describe("failed deployments", () => {
  test("stores the last output of a failed build, and keeps the previous deployment live", async () => {
    const { actor, project } = await start();
    const live = await deployAndRun(host, actor, project);
    host.pipeline.during.build = async ({ log }) => {
      for (let line = 1; line <= 50; line += 1) await log(`line ${line}\n`);
      throw new DeploymentFailed("step 3 ended with exit code 1.");
    };
    const row = await deployAndRun(host, actor, project);
    expect(row.status).toBe("failed");
    expect(row.error).toMatch(/^The build failed: step 3 ended with exit code 1\.\nLast output:\nline 21\n/);
    expect(row.error).toMatch(/line 50$/);
    const [news] = await listNotifications(app, actor);
    expect(news).toMatchObject({ kind: "deploy_failed", body: expect.stringMatching(/^The build failed; /) });
    expect(statusesOf(row)).toEqual([
      "clone succeeded",
      "detect succeeded",
      "build failed",
      ...["release", "health", "route"].map((name) => `${name} skipped`),
    ]);
    expect((await get(actor, live)).status).toBe("live");
    expect(stage.serving.get(project.environmentId)).toBe(live.id);
    expect((await readBuildLog(app, actor, row.id)).text).toMatch(/^line 1\n[^]*line 50\n$/);
    expect(await readdir(workDirectory(app))).toEqual([]);
  });

  test("removes the candidate when its health check fails", async () => {
    const { actor, project } = await start();
    const live = await deployAndRun(host, actor, project);
    host.pipeline.during.health = async () => {
      expect(stage.candidates.size).toBe(1);
      throw new DeploymentFailed("it ended with exit code 7. Last output:\nno such module");
    };
    const row = await deployAndRun(host, actor, project);
    expect(row).toMatchObject({ status: "failed" });
    expect(row.error).toMatch(/^The app did not become healthy: it ended with exit code 7\./);
    expect(stage.candidates.size).toBe(0);
    expect(stage.serving.get(project.environmentId)).toBe(live.id);
  });

  test("reports an internal error without its details", async () => {
    const { actor, project } = await start();
    host.pipeline.during.release = async () => {
      throw new Error("connect /var/secret.sock");
    };
    const row = await deployAndRun(host, actor, project);
    expect(row.error).toBe(
      "The app could not be started: this host reported an internal error; deploy again.",
    );
  });

  test("does not fail or delay a deployment when its scan fails or takes long", async () => {
    const { actor, project } = await start();
    host.pipeline.during.scan = async () => {
      throw new Error("no advisories");
    };
    const { id } = await queueDeployment(host, actor, project);
    host.pipeline.during.health = async () => {
      await expect.poll(async () => scanOf(await get(actor, { id }))).toBe("failed");
    };
    await host.run();
    expect((await get(actor, { id })).status).toBe("live");
    host.pipeline.during.health = async () => {};
    host.pipeline.during.scan = () => new Promise(() => {});
    const row = await deployAndRun(host, actor, project);
    expect([row.status, scanOf(row)]).toEqual(["live", "skipped"]);
  });

  test.each([
    ["succeeded", null],
    ["failed", "The image could not be scanned."],
  ] as const)("records a scan that ends after its deployment as %s", async (status, error) => {
    const scan = async (): Promise<string> => {
      if (status === "failed") throw new Error("no advisories");
      return "3 known faults.";
    };
    const { actor, project } = await start();
    host.pipeline.during.scan = () => new Promise(() => {});
    const { id } = await deployAndRun(host, actor, project);
    const readScanStep = async () => (await get(actor, { id })).steps.find(({ name }) => name === "scan");
    expect(await readScanStep()).toMatchObject({
      status: "skipped",
      error: expect.stringContaining("continues"),
    });
    expect(await hasJob(db, `${lateScanTask}:${id}`)).toBe(true);
    const stopped = AbortSignal.abort();
    const failByStop = () => Promise.reject(new Error("the server stops"));
    await expect(finishLateScan(app, failByStop, id, stopped)).rejects.toThrow("the server stops");
    const { signal } = new AbortController();
    await finishLateScan(app, scan, id, signal);
    expect(await readScanStep()).toMatchObject({ status, error, finished_at: expect.any(String) });
    const scans: string[] = [];
    await finishLateScan(app, async (_, __, tag) => String(scans.push(tag)), id, signal);
    expect(scans).toEqual([]);
  });

  test("starts another payer's late scan before a payer's second one", async () => {
    const [many, one] = [await start(), await start()];
    const ids: string[] = [];
    for (const { actor, project } of [many, many, many, one]) {
      host.pipeline.during.scan = () => new Promise(() => {});
      ids.push((await deployAndRun(host, actor, project)).id);
    }
    const begun: string[] = [];
    const ends = Promise.withResolvers<string>();
    const lateScans = new LateScans(app, async (_, projectId) => {
      begun.push(projectId);
      return ends.promise;
    });
    const { signal } = new AbortController();
    const first = lateScans.finish(ids[0]!, signal);
    await expect.poll(() => begun).toEqual([many.project.id]);
    // A queued scan holds no worker. The job table keeps the scan for the next server.
    await lateScans.finish(ids[1]!, signal);
    await lateScans.finish(ids[2]!, signal);
    expect(await hasJob(db, `${lateScanTask}:${ids[1]}`)).toBe(true);
    const other = lateScans.finish(ids[3]!, signal);
    await expect.poll(() => begun).toEqual([many.project.id, one.project.id]);
    ends.resolve("0 known faults.");
    await Promise.all([first, other]);
    expect(begun).toHaveLength(4);
  });

  test("repeats the scan of a server that died after the switch", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    host.pipeline.during.scan = () => new Promise(() => {});
    expect(await host.dieAt("deploy.switched")).toBe(true);
    host.pipeline.during.scan = () => new Promise(() => {});
    await host.run();
    const row = await get(actor, { id });
    expect([row.status, scanOf(row)]).toEqual(["live", "skipped"]);
    expect(await hasJob(db, `${lateScanTask}:${id}`)).toBe(true);
  });

  test("names the failed step in the notification, not a failed scan", async () => {
    const { actor, project } = await start();
    host.pipeline.during.scan = async () => {
      throw new Error("no advisories");
    };
    const { id } = await queueDeployment(host, actor, project);
    host.pipeline.during.health = async () => {
      await expect.poll(async () => scanOf(await get(actor, { id }))).toBe("failed");
      throw new DeploymentFailed("nothing answers.");
    };
    await host.run();
    const [news] = await listNotifications(app, actor);
    expect(news).toMatchObject({
      kind: "deploy_failed",
      body: expect.stringContaining("did not become healthy"),
    });
  });

  test("names the missing part of a repository that has nothing to build", async () => {
    const { actor } = await start();
    const project = await makeProject(host, actor, { root_directory: "/apps/web" });
    const row = await deployAndRun(host, actor, project);
    expect(row.error).toMatch(
      /^The repository could not be made into an image: the repository has no directory apps\/web/,
    );
  });
});

test("leaves no step pending or running after the end of a deployment, and marks no step of a cancelled one as failed", async () => {
  const { actor, project } = await start();
  const waiting = await queueDeployment(host, actor, project);
  await cancelDeployment(app, actor, waiting.id);
  host.pipeline.during.build = async (work) => {
    await cancelDeployment(app, actor, running.id);
    await untilAborted(work);
  };
  const running = await queueDeployment(host, actor, project);
  await host.run();
  expect(statusesOf(await get(actor, waiting))).toEqual(
    stepsOf.commit.filter((name) => name !== "scan").map((name) => `${name} skipped`),
  );
  const row = await get(actor, running);
  expect(row.status).toBe("cancelled");
  expect(statusesOf(row)).toEqual([
    "clone succeeded",
    "detect succeeded",
    "build skipped",
    ...["release", "health", "route"].map((name) => `${name} skipped`),
  ]);
  expect(scanOf(row)).toBe("skipped");
});

test("skips a dead server's scan when its deployment has no attempts left", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  for (let times = 0; times < 3; times += 1) {
    const there = Promise.withResolvers<void>();
    host.pipeline.during.scan = () => new Promise(() => {});
    host.pipeline.during.health = async () => {
      await expect.poll(async () => scanOf(await get(actor, { id }))).toBe("running");
      there.resolve();
      return new Promise(() => {});
    };
    void host.run();
    await there.promise;
    await host.restart();
  }
  await host.run();
  const row = await get(actor, { id });
  expect(row).toMatchObject({ status: "failed", error: expect.stringContaining("3 times") });
  expect([scanOf(row), statusesOf(row)]).toEqual([
    "skipped",
    expect.arrayContaining(["health failed", "route skipped"]),
  ]);
});

test("fails a dead server's step when its deployment has no attempts left", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  host.pipeline.during.build = () => new Promise(() => {});
  for (let times = 0; times < 3; times += 1) {
    const there = Promise.withResolvers<void>();
    host.pipeline.during.build = () => {
      there.resolve();
      return new Promise(() => {});
    };
    void host.run();
    await there.promise;
    await host.restart();
  }
  await host.run();
  const row = await get(actor, { id });
  expect(row).toMatchObject({ status: "failed", error: expect.stringContaining("3 times") });
  expect(statusesOf(row)).toContain("build failed");
  expect(statusesOf(row).join()).not.toMatch(/pending|running/);
});

describe("cancellation", () => {
  test("cancels a queued deployment before its start", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    expect((await cancelDeployment(app, actor, id)).status).toBe("cancelled");
    expect((await cancelDeployment(app, actor, id)).status).toBe("cancelled");
    await host.run();
    expect(await get(actor, { id })).toMatchObject({ status: "cancelled", started_at: null });
  });

  test.each(["clone", "build", "release", "health"] as const)(
    "cancels a deployment during step %s",
    async (step) => {
      const { actor, project } = await start();
      const live = await deployAndRun(host, actor, project);
      const { id } = await queueDeployment(host, actor, project);
      host.pipeline.during[step] = async (work) => {
        await cancelDeployment(app, actor, id);
        await untilAborted(work);
      };
      await host.run();
      expect(await get(actor, { id })).toMatchObject({ status: "cancelled", error: null });
      expect(stage.candidates.size).toBe(0);
      expect(stage.serving.get(project.environmentId)).toBe(live.id);
    },
  );

  test("refuses to cancel a deployment after the switch, or after its end", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    host.pipeline.during.route = async () => {
      await expect(cancelDeployment(app, actor, id)).rejects.toMatchObject({
        code: "deployment_not_cancellable",
      });
    };
    await host.run();
    expect((await get(actor, { id })).status).toBe("live");
    await expect(cancelDeployment(app, actor, id)).rejects.toMatchObject({
      code: "deployment_not_cancellable",
    });
  });
});

describe("rollbacks", () => {
  const plain = { allowRebuild: false, restoreEnv: false };

  async function twice() {
    const { actor, project } = await start();
    await setVariable(actor, project, "one");
    const first = await deployAndRun(host, actor, project);
    await setVariable(actor, project, "two");
    const second = await deployAndRun(host, actor, project);
    return { actor, project, first, second };
  }

  const setVariable = (actor: Actor, project: TestProject, value: string) =>
    updateEnvironment(app, actor, project.id, project.environmentId, { env_vars: { V: value } });

  test("rolls back image, command and port, and keeps the current variables", async () => {
    const { actor, first, second } = await twice();
    const builds = stage.builds;
    const { id } = await rollback(app, host.pipeline, actor, first.id, plain);
    await host.run();
    const row = await get(actor, { id });
    expect(row).toMatchObject({ status: "live", trigger_kind: "rollback", rolled_back_from: first.id });
    expect(row.image_tag).toBe(first.image_tag);
    expect(stage.builds).toBe(builds);
    expect(stage.started.get(id)).toMatchObject({ env: { V: "two" }, image: first.image_tag });
    expect(statusesOf(row)).toEqual([
      ...["clone", "detect", "build"].map((name) => `${name} skipped`),
      ...["release", "health", "route"].map((name) => `${name} succeeded`),
    ]);
    expect((await get(actor, second)).status).toBe("superseded");
  });

  test("restores the earlier variables when a rollback requests them", async () => {
    const { actor, first } = await twice();
    const { id } = await rollback(app, host.pipeline, actor, first.id, { ...plain, restoreEnv: true });
    await host.run();
    expect(stage.started.get(id)!.env).toEqual({ V: "one" });
  });

  test("refuses a rollback without an image, or builds the original commit again if the request allows a build", async () => {
    const { actor, first } = await twice();
    stage.images.delete(first.image_tag!);
    await expect(rollback(app, host.pipeline, actor, first.id, plain)).rejects.toMatchObject({
      code: "image_pruned",
    });
    await db
      .updateTable("deployments")
      .set({ commit_sha: "1".repeat(40) })
      .where("id", "=", first.id)
      .execute();
    const { id } = await rollback(app, host.pipeline, actor, first.id, { ...plain, allowRebuild: true });
    await host.run();
    const row = await get(actor, { id });
    expect(row).toMatchObject({ status: "live", commit_sha: "1".repeat(40), run: first.run });
    expect(statusesOf(row)).toEqual(allSucceeded);
  });

  test("fails a queued rollback when its image is deleted before the start", async () => {
    const { actor, first } = await twice();
    const { id } = await rollback(app, host.pipeline, actor, first.id, plain);
    stage.images.delete(first.image_tag!);
    await host.run();
    expect(await get(actor, { id })).toMatchObject({
      status: "failed",
      error: expect.stringContaining("was deleted"),
    });
  });

  test("refuses a rollback on a plan without rollbacks, and to a deployment that was never live", async () => {
    const { actor, project } = await start("starter");
    const row = await deployAndRun(host, actor, project);
    await expect(rollback(app, host.pipeline, actor, row.id, plain)).rejects.toMatchObject({
      code: "plan_limit",
      meta: { tier_needed: "pro" },
    });
    const other = await start();
    const waiting = await queueDeployment(host, other.actor, other.project);
    await expect(rollback(app, host.pipeline, other.actor, waiting.id, plain)).rejects.toMatchObject({
      code: "not_rollbackable",
    });
  });
});

describe("builds of an unchanged commit", () => {
  const again = async (
    actor: Actor,
    project: TestProject,
    more: { sha?: string; rebuild?: boolean } = {},
  ) => {
    const request = { project, environmentId: project.environmentId, trigger: "api" as const, ...more };
    const { id } = await deploy(app, actor, request);
    host.pipeline.reuses = true;
    await host.run();
    return get(actor, { id });
  };

  test("reuses the image of an unchanged commit, and names the reuse in the log, the step and the record", async () => {
    const { actor, project } = await start();
    const first = await deployAndRun(host, actor, project);
    const before = stage.builds;
    const second = await again(actor, project);
    expect(second).toMatchObject({ status: "live", image_tag: first.image_tag, image_reused: true });
    expect(stage.builds).toBe(before);
    expect(statusesOf(second)).toContain("build skipped");
    expect((await readBuildLog(app, actor, second.id)).text).toContain("Nothing is built");
    expect(first.image_reused).toBe(false);
  });

  test("builds an unchanged commit when requested, and when a variable, a setting or the commit differs", async () => {
    const { actor, project } = await start();
    await deployAndRun(host, actor, project);
    const countBuilds = async (more?: { sha?: string; rebuild?: boolean }) => {
      const before = stage.builds;
      const row = await again(actor, project, more);
      expect(row).toMatchObject({ status: "live", image_reused: stage.builds === before });
      return stage.builds - before;
    };
    expect(await countBuilds({ rebuild: true })).toBe(1);
    expect(await countBuilds({ sha: "a".repeat(40) })).toBe(1);
    expect(await countBuilds()).toBe(0);
    await updateEnvironment(app, actor, project.id, project.environmentId, { env_vars: { A: "1" } });
    expect(await countBuilds()).toBe(1);
    await updateEnvironment(app, actor, project.id, project.environmentId, { env_vars: { A: null } });
    expect(await countBuilds()).toBe(0);
  });

  test("builds an unchanged commit when a retention that is already running removes its image", async () => {
    const { actor, project } = await start();
    const first = await deployAndRun(host, actor, project);
    const before = stage.builds;
    const retention = await db.startTransaction().execute();
    try {
      await lockImages(retention, project.id);
      const ending = again(actor, project);
      const findRunning = () =>
        db
          .selectFrom("deployments")
          .select(["number", "image_tag"])
          .where("project_id", "=", project.id)
          .where("id", "<>", first.id)
          .executeTakeFirst();
      await expect.poll(findRunning).toMatchObject({ image_tag: first.image_tag });
      stage.images.delete(first.image_tag!);
      await retention.commit().execute();
      expect(await ending).toMatchObject({ status: "live", image_reused: false });
    } finally {
      if (!retention.isCommitted) await retention.rollback().execute();
    }
    expect(stage.builds).toBe(before + 1);
  });

  test("builds an unchanged commit when its image is pruned", async () => {
    const { actor, project } = await start();
    const first = await deployAndRun(host, actor, project);
    stage.images.delete(first.image_tag!);
    const before = stage.builds;
    expect(await again(actor, project)).toMatchObject({ status: "live", image_reused: false });
    expect(stage.builds).toBe(before + 1);
  });
});

describe("restarts", () => {
  const of = (project: TestProject) => ({ projectId: project.id, environmentId: project.environmentId });

  test("restarts the live image on another machine with current variables, without a build", async () => {
    const { actor, project } = await start("starter");
    const first = await deployAndRun(host, actor, project);
    await updateEnvironment(app, actor, project.id, project.environmentId, { env_vars: { A: "2" } });
    const before = stage.builds;
    const { id } = await restart(app, actor, of(project));
    await host.run();
    const row = await get(actor, { id });
    expect(row).toMatchObject({ status: "live", trigger_kind: "restart", image_tag: first.image_tag });
    expect(statusesOf(row)).toEqual([
      "clone skipped",
      "detect skipped",
      "build skipped",
      "release succeeded",
      "health succeeded",
      "route succeeded",
    ]);
    expect(stage.builds).toBe(before);
    expect(stage.serving.get(project.environmentId)).toBe(id);
    expect(stage.started.get(id)).toMatchObject({ env: { A: "2" } });
    expect((await get(actor, first)).status).toBe("superseded");
    const { items } = await listActivity(app, actor, { skip: 0, limit: 2 });
    expect(items.map(({ action }) => action)).toEqual(["deployment.succeeded", "deployment.restarted"]);
  });

  test("refuses a restart without a live deployment, and during a deployment", async () => {
    const { actor, project } = await start();
    await expect(restart(app, actor, of(project))).rejects.toMatchObject({ code: "nothing_deployed" });
    await deployAndRun(host, actor, project);
    await queueDeployment(host, actor, project);
    await expect(restart(app, actor, of(project))).rejects.toMatchObject({ code: "deployment_in_progress" });
    await host.run();
  });
});

test("deploys the requested tag, and records the tag", async () => {
  const { actor, project } = await start();
  const request = { project, environmentId: project.environmentId, trigger: "api" as const, tag: "v1.2" };
  const { id } = await deploy(app, actor, request);
  await host.run();
  const row = await get(actor, { id });
  expect(row).toMatchObject({ status: "live", wanted_tag: "v1.2", commit_sha: "f".repeat(40) });
  expect((await readLogs(app, actor, id))[0]!.text).toBe("fetching v1.2\n");
});

describe("deployments and crashes of the server", () => {
  test.each([
    ["deploy.cloned", 1],
    ["deploy.built", 1],
    ["deploy.released", 1],
    ["deploy.healthy", 1],
    ["deploy.switched", 1],
  ])("resumes a deployment after a crash at %s, without a second build", async (point, builds) => {
    const { actor, project } = await start();
    const live = await deployAndRun(host, actor, project);
    const before = stage.builds;
    const { id } = await queueDeployment(host, actor, project);
    expect(await host.dieAt(point)).toBe(true);
    expect(await get(actor, live)).toMatchObject({ status: "live" });
    await host.run();
    expect(await get(actor, { id })).toMatchObject({ status: "live", error: null });
    expect((await get(actor, live)).status).toBe("superseded");
    expect(stage.builds - before).toBe(builds);
    expect(stage.serving.get(project.environmentId)).toBe(id);
    expect(stage.candidates.size).toBe(0);
    expect(await readdir(workDirectory(app)).catch(() => [])).toEqual([]);
  });

  test("fails a deployment after three crashes of the server", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    for (let death = 0; death < 3; death += 1) expect(await host.dieAt("deploy.released")).toBe(true);
    await host.run();
    expect(await get(actor, { id })).toMatchObject({
      status: "failed",
      error: "The server stopped 3 times during this deployment. Deploy again to retry.",
    });
  });

  test("checks the app of a deployment after a crash that followed the switch, and fails the deployment if the app does not respond", async () => {
    const { actor, project } = await start();
    const live = await deployAndRun(host, actor, project);
    const { id } = await queueDeployment(host, actor, project);
    expect(await host.dieAt("deploy.switched")).toBe(true);
    await expect(cancelDeployment(app, actor, id)).rejects.toMatchObject({
      code: "deployment_not_cancellable",
    });
    host.pipeline.during.proof = async () => {
      throw new DeploymentFailed("It answered 502.");
    };
    await host.run();
    expect(await get(actor, { id })).toMatchObject({
      status: "failed",
      error: "The app did not respond at its address: it answered 502.",
    });
    expect(stage.serving.get(project.environmentId)).toBe(id);
    expect((await get(actor, live)).status).toBe("superseded");
    expect((await deployAndRun(host, actor, project)).status).toBe("live");
  });

  test("cancels a deployment after a crash that followed the request", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    expect(await host.dieAt("deploy.cloned")).toBe(true);
    await cancelDeployment(app, actor, id);
    await host.run();
    expect((await get(actor, { id })).status).toBe("cancelled");
  });

  test("resumes a deployment after a graceful shutdown, without counting the attempt", async () => {
    const { actor, project } = await start();
    const { id } = await queueDeployment(host, actor, project);
    const stops = new AbortController();
    host.pipeline.during.build = async (work) => {
      stops.abort();
      await untilAborted(work);
    };
    await host.deployments.run(stops.signal);
    expect(await get(actor, { id })).toMatchObject({ status: "building", attempts: 0 });
    await host.restart();
    await host.run();
    expect(await get(actor, { id })).toMatchObject({ status: "live", attempts: 1 });
  });
});

test("cancels the running deployment of a deleted environment", async () => {
  const { actor, project } = await start();
  const { id } = await queueDeployment(host, actor, project);
  host.pipeline.during.health = async (work) => {
    await db
      .updateTable("environments")
      .set({ deleted_at: app.clock.now() })
      .where("id", "=", project.environmentId)
      .execute();
    await untilAborted(work);
  };
  await host.run();
  const row = await db.selectFrom("deployments").selectAll().where("id", "=", id).executeTakeFirstOrThrow();
  expect(row).toMatchObject({ status: "cancelled", error: "The environment was deleted." });
  expect(stage.candidates.size).toBe(0);
});

test("limits a build's stored output, writes it in batches, and keeps the last lines for the error", async () => {
  const { actor, project } = await start();
  const block = `${"x".repeat(1023)}\n`.repeat(64);
  host.pipeline.during.build = async ({ log }) => {
    for (let blocks = 0; blocks < 200 * 16; blocks += 1) await log(block);
    await log("the last words\n");
    throw new DeploymentFailed("it failed.");
  };
  const row = await deployAndRun(host, actor, project);
  expect(row.error).toMatch(/the last words$/);
  const { text, truncated } = await readBuildLog(app, actor, row.id);
  expect(truncated).toBe(true);
  expect(text).toMatch(/\(more output is not kept\)\n$/);
  expect(text.length).toBeLessThan(4.1 * 1024 ** 2);
  expect((await readLogs(app, actor, row.id)).length).toBeLessThan(100);
});

test("lists and counts the deployments of one environment, or with one status", async () => {
  const { actor, project } = await start();
  const input = { name: "staging", kind: "staging", branch: "main", env_vars: {} } as const;
  const staging = await createEnvironment(app, actor, project.id, input);
  const live = await deployAndRun(host, actor, project);
  host.pipeline.during.health = async () => {
    throw new DeploymentFailed("no.");
  };
  const request = { project, environmentId: staging.id, trigger: "api" } as const;
  const { id } = await deploy(app, actor, request);
  await host.run();
  const list = async (filter: object) => {
    const { items, total } = await listDeployments(db, project.id, { skip: 0, limit: 10, ...filter });
    return [total, ...items.map((row) => row.id)];
  };
  expect((await list({}))[0]).toBe(2);
  expect(await list({ environmentId: staging.id })).toEqual([1, id]);
  expect(await list({ status: "live" })).toEqual([1, live.id]);
  expect(await list({ environmentId: staging.id, status: "live" })).toEqual([0]);
  expect(await deploymentStats(app, project.id, staging.id)).toMatchObject({
    total: 1,
    failed: 1,
    last: { id },
  });
});

test("counts deployments by outcome in the statistics", async () => {
  const { actor, project } = await start();
  expect(toStats(app, await deploymentStats(app, project.id))).toEqual({
    total: 0,
    succeeded: 0,
    failed: 0,
    success_rate: null,
    average_duration_ms: null,
    last_deployment: null,
  });
  host.pipeline.during.health = async () => host.clock.advance(2_000);
  await deployAndRun(host, actor, project);
  await deployAndRun(host, actor, project);
  host.pipeline.during.health = async () => {
    throw new DeploymentFailed("no.");
  };
  const last = await deployAndRun(host, actor, project);
  expect(toStats(app, await deploymentStats(app, project.id))).toMatchObject({
    total: 3,
    succeeded: 2,
    failed: 1,
    success_rate: 2 / 3,
    average_duration_ms: 2_000,
    last_deployment: { id: last.id, status: "failed" },
  });
});

test("returns 404 for a deployment of another user's workspace", async () => {
  const { actor, project } = await start();
  const row = await deployAndRun(host, actor, project);
  const stranger = await personWithPlan(db, "team");
  await expect(get(stranger, row)).rejects.toMatchObject({ code: "deployment_not_found" });
});
