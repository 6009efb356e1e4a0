/**
 * From a push to an address, on real builds and real machines, with failures, their reasons, and kill -9 at several
 * points.
 */
import { run } from "@kontor/runtime/exec.ts";
import { afterAll, afterEach, beforeAll, expect, inject, onTestFinished, test } from "vitest";
import { dockerfile, open, type Project, saying } from "./support/projects.ts";
import * as projects from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;

beforeAll(async () => {
  server = await startServer(
    {
      KONTOR_POOL_SIZE: "0",
      KONTOR_APP_START_SECONDS: "10",
      KONTOR_RATE_LIMITS: "off",
      KONTOR_UPLINK: inject("internet"),
    },
    ["node-22"],
  );
});
afterAll(() => server.destroy());
afterEach(() => server.start());

async function makeProject(): Promise<Project> {
  const project = await projects.makeProject(server);
  onTestFinished(() => projects.deleteProject(server, project));
  return project;
}

const push = (project: Project, files: Record<string, string>) => projects.push(server, project, files);
const waitForDeployment = (project: Project) => projects.waitForDeployment(server, project);
const visit = (project: Project) => projects.visit(server, project);

test(
  "builds and serves a pushed commit, replaces it by the next push, and rolls back",
  { timeout: 300_000 },
  async () => {
    const project = await makeProject();
    const nothingYet = await open(server, project);
    expect([nothingYet.statusCode, nothingYet.headers["x-kontor-error"]]).toEqual([404, "not_deployed"]);
    nothingYet.destroy();
    const told = await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
    const first = await waitForDeployment(project);
    expect(first.error).toBe(null);
    expect(first.status).toBe("live");
    expect(told).toContain("remote:");
    expect(await visit(project)).toEqual({ status: 200, text: "one" });

    await push(project, { Dockerfile: dockerfile(), "server.js": saying("two") });
    expect(await waitForDeployment(project)).toMatchObject({ status: "live", number: 2, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "two" });

    const back = await server.api("POST", `/api/v1/deployments/${first.id}/rollback`);
    expect(back.status, JSON.stringify(back.body)).toBe(200);
    expect(await waitForDeployment(project)).toMatchObject({ status: "live", number: 3, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "one" });
  },
);

test(
  "a failed deployment reports its reason, and the previous version stays live",
  { timeout: 300_000 },
  async () => {
    const project = await makeProject();
    await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
    expect(await waitForDeployment(project)).toMatchObject({ status: "live", error: null });

    await push(project, {
      Dockerfile: dockerfile("RUN echo the stylesheet is missing && exit 3"),
      "server.js": saying("two"),
    });
    const unbuilt = await waitForDeployment(project);
    expect(unbuilt.status).toBe("failed");
    expect(unbuilt.error).toContain("the stylesheet is missing");

    await push(project, {
      Dockerfile: dockerfile(),
      "server.js": "console.log('no database'); process.exit(7)",
    });
    const exited = await waitForDeployment(project);
    expect(exited.status).toBe("failed");
    expect(exited.error).toMatch(/7[^]*no database/);

    await push(project, { Dockerfile: dockerfile(), "server.js": "setInterval(() => {}, 1000)" });
    const silent = await waitForDeployment(project);
    expect(silent.status).toBe("failed");
    expect(silent.error).toContain("port 4000");
    expect(await visit(project)).toEqual({ status: 200, text: "one" });
  },
);

test("fifty failed builds leave no data on the disk", { timeout: 900_000 }, async () => {
  const project = await makeProject();
  const failing = dockerfile("RUN head -c 5M /dev/urandom > /srv/big && false");
  await push(project, { Dockerfile: failing, "server.js": saying("one") });
  expect(await waitForDeployment(project)).toMatchObject({ status: "failed" });
  const bytes = async () => {
    // The write-ahead log is excluded, because PostgreSQL recycles its files independently of builds.
    const { stdout } = await run(["du", "-sx", "--block-size=1", "--exclude=pg_wal", server.dataDir], {
      timeoutMs: 60_000,
      okCodes: [0, 1],
    });
    return Number.parseInt(stdout, 10);
  };
  const before = await bytes();
  for (let number = 2; number <= 51; number += 1) {
    const { status, body } = await server.api("POST", `/api/v1/projects/${project.id}/deployments`);
    expect(status, JSON.stringify(body)).toBe(201);
    expect(await waitForDeployment(project)).toMatchObject({ status: "failed", number });
  }
  // The limit is less than the output of four builds, and leaves space for rows and logs.
  expect((await bytes()) - before).toBeLessThan(20 * 1024 ** 2);
});

test.each([
  "git.push.before_deploy",
  "deploy.cloned",
  "app_build.made",
  "deploy.built",
  "deploy.released",
  "deploy.healthy",
  "app.switched",
  "deploy.switched",
])(
  "the next server continues a deployment after kill -9 at %s, and the previous version stays live meanwhile",
  { timeout: 300_000 },
  async (point) => {
    const project = await makeProject();
    await push(project, { Dockerfile: dockerfile(), "server.js": saying("one") });
    expect(await waitForDeployment(project)).toMatchObject({ status: "live", error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "one" });
    // The response to the push is lost with the server.
    const two = { Dockerfile: dockerfile(), "server.js": saying("two") };
    await server.dieAt(point, () => push(project, two).catch(() => {}));
    expect(await waitForDeployment(project)).toMatchObject({ status: "live", number: 2, error: null });
    expect(await visit(project)).toEqual({ status: 200, text: "two" });
  },
);
