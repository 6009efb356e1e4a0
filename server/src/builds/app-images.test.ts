import { afterAll, beforeEach, describe, expect, test } from "vitest";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { randomUUID } from "node:crypto";
import type { App } from "#app.ts";
import { openMachines } from "#machines/open.ts";
import { makePerson } from "../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../test/harness.ts";
import {
  buildAppImage,
  BuildFailed,
  deleteProjectImages,
  findAppImage,
  findEqualAppImage,
  pruneAppImages,
  runOf,
  sweepAppImages,
} from "./app-images.ts";

const { db } = await testDatabase();
const dataDir = mkdtempSync(join(tmpdir(), "kontor-app-images-"));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
const config = testConfig({ dataDir });
const builder = new FakeBuilder();
const driver = new FakeDriver({ directory: join(dataDir, "machines") });
const clock = testClock();
const machines = await openMachines({ config, db, clock, log: silentLog, driver, builder });
afterAll(() => machines.close());
const app: Pick<App, "db" | "machines" | "config" | "clock" | "log"> = {
  db,
  machines,
  config,
  clock,
  log: silentLog,
};
const { signal } = new AbortController();

async function makeProject() {
  const { workspace } = await makePerson(db);
  const { id } = await db
    .insertInto("projects")
    .values({
      workspace_id: workspace.id,
      name: `p${randomUUID().slice(0, 8)}`,
      repo_url: null,
      branch: "main",
      root_directory: "/",
      health_check_path: "/",
      auto_deploy: true,
      isolation: "native",
      region: "eu-1",
      hook_id: randomUUID(),
      hook_secret_sealed: Buffer.from("x"),
    } as never)
    .returning("id")
    .executeTakeFirstOrThrow();
  return { workspaceId: workspace.id, projectId: id };
}

const recipe = 'FROM node:22-slim\nWORKDIR /app\nEXPOSE 3000\nCMD ["node","server.js"]\n';

function request(project: { workspaceId: string; projectId: string }, text = recipe) {
  return {
    ...project,
    deploymentId: randomUUID(),
    context: dataDir,
    rootDirectory: ".",
    recipe: text,
    secrets: {},
    plan: "pro" as const,
  };
}

beforeEach(() => {
  builder.during = async () => {};
});

test("finds an image by its build key in its own project until the image is pruned", async () => {
  const project = await makeProject();
  const buildKey = Buffer.from("one");
  const find = (projectId: string, key: Buffer) => findEqualAppImage(app, projectId, key);
  const built = await buildAppImage(app, { ...request(project), buildKey }, { log: () => {}, signal });
  expect(await find(project.projectId, buildKey)).toEqual(built);
  expect(await find(project.projectId, Buffer.from("two"))).toBeUndefined();
  expect(await find((await makeProject()).projectId, buildKey)).toBeUndefined();
  await pruneAppImages(db, [built.imageId], clock.now());
  expect(await find(project.projectId, buildKey)).toBeUndefined();
});

test("returns the image's command, user and port, and finds the image by its tag", async () => {
  const project = await makeProject();
  const lines: string[] = [];
  const built = await buildAppImage(app, request(project), { log: (text) => void lines.push(text), signal });

  expect(built).toMatchObject({ tag: "b1", run: { argv: ["node", "server.js"], port: 3000, cwd: "/app" } });
  expect(lines.join("")).toContain("FROM node:22-slim");
  expect(await findAppImage(app, project.projectId, "b1")).toEqual(built);
  expect((await driver.images()).map(({ id }) => id)).toContain(built.imageId);
  const next = await buildAppImage(app, request(project), { log: () => {}, signal });
  expect(next.tag).toBe("b2");
});

test("reports the cause of a failed build, and creates no image", async () => {
  const project = await makeProject();
  const failing = request(project, `${recipe}RUN false\n`);
  const failed = await buildAppImage(app, failing, { log: () => {}, signal }).catch(
    (error: unknown) => error,
  );

  expect(failed).toBeInstanceOf(BuildFailed);
  expect(failed).toMatchObject({
    message: '"RUN false" exited with 1',
    last: expect.stringContaining("RUN false"),
  });
  expect(await findAppImage(app, project.projectId, "b1")).toBeUndefined();
});

test("keeps an image while a row names it, and removes the image with the first sweep after that", async () => {
  const project = await makeProject();
  const one = await buildAppImage(app, request(project), { log: () => {}, signal });
  const two = await buildAppImage(app, request(project), { log: () => {}, signal });
  await pruneAppImages(db, [one.imageId], clock.now());
  await sweepAppImages(app);

  expect(await builder.images()).toEqual(expect.arrayContaining([two.imageId]));
  expect(await builder.images()).not.toContain(one.imageId);
  expect(await findAppImage(app, project.projectId, one.tag)).toBeUndefined();

  await deleteProjectImages(app, project.projectId);
  expect(await builder.images()).not.toContain(two.imageId);
});

test("removes images without a row, as a crash before the insert leaves them", async () => {
  await machines.host.buildImage(
    {
      id: "app_orphan",
      workspace: "w",
      checkout: dataDir,
      context: ".",
      dockerfile: recipe,
      secrets: {},
      memoryBytes: 1,
      vcpus: 1,
      diskBytes: 1,
      timeoutMs: 1000,
    },
    { log: () => {}, signal },
  );
  await sweepAppImages(app);
  expect(await builder.images()).not.toContain("app_orphan");
  expect((await driver.images()).map(({ id }) => id)).not.toContain("app_orphan");
});

test("does not remove an image during its build", async () => {
  const project = await makeProject();
  const during = Promise.withResolvers<void>();
  const reached = Promise.withResolvers<void>();
  builder.during = async () => {
    reached.resolve();
    await during.promise;
  };
  const building = buildAppImage(app, request(project), { log: () => {}, signal });
  await reached.promise;
  await sweepAppImages(app);
  during.resolve();
  const { tag } = await building;
  await sweepAppImages(app);
  expect(await findAppImage(app, project.projectId, tag)).toBeDefined();
});

test("leaves the queue when a waiting build is aborted", async () => {
  const project = await makeProject();
  const during = Promise.withResolvers<void>();
  builder.during = () => during.promise;
  const first = buildAppImage(app, request(project), { log: () => {}, signal });
  const giveUp = new AbortController();
  const lines: string[] = [];
  const second = buildAppImage(app, request(project), {
    log: (text) => void lines.push(text),
    signal: giveUp.signal,
  });
  await expect.poll(() => lines.join("")).toContain("Waiting");
  giveUp.abort(new Error("the build is cancelled"));
  await expect(second).rejects.toThrow("the build is cancelled");
  during.resolve();
  await first;
});

test("builds a payer's single image before another payer's twenty waiting images", async () => {
  const [busy, other] = [await makeProject(), await makeProject()];
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  builder.during = ({ checkout }) => {
    begun.push(checkout);
    return new Promise((resolve) => ends.push(resolve));
  };
  let waiting = 0;
  // This server has a queue of its own, apart from that of the earlier tests.
  const one = { ...app, config: { ...config, buildConcurrency: 1 } };
  const build = (project: typeof busy, name: string) => {
    const context = join(dataDir, name);
    mkdirSync(context, { recursive: true });
    const log = (text: string) => void (text.startsWith("Waiting") && (waiting += 1));
    return buildAppImage(one, { ...request(project), context }, { log, signal });
  };
  const all = [build(busy, "busy-0")];
  await expect.poll(() => begun.length).toBe(1);
  for (let n = 1; n <= 20; n += 1) all.push(build(busy, `busy-${n}`));
  all.push(build(other, "other"));
  const done = Promise.all(all);
  await expect.poll(() => waiting).toBe(21);
  for (let n = 0; n < all.length; n += 1) {
    await expect.poll(() => ends.length).toBe(n + 1);
    ends[n]?.();
  }
  await done;
  expect(begun.slice(0, 2).map((path) => basename(path))).toEqual(["busy-0", "other"]);
});

test("drops output past 4 MiB and logs that it did", async () => {
  const project = await makeProject();
  const lines: string[] = [];
  builder.during = async (_, { log }) => {
    for (let turn = 0; turn < 6; turn += 1) log("y".repeat(1024 ** 2));
  };
  await buildAppImage(app, request(project), { log: (text) => void lines.push(text), signal });
  expect(lines.join("").length).toBeLessThan(4 * 1024 ** 2 + 100);
  expect(lines.at(-1)).toBe("(more output is not kept)\n");
});

describe("run parameters of an image's configuration", () => {
  test("returns the command, user, directory and port of the configuration", () => {
    expect(
      runOf({
        Entrypoint: ["/entry"],
        Cmd: ["serve"],
        User: "1000:1000",
        WorkingDir: "/srv",
        ExposedPorts: { "53/udp": {}, "8080/tcp": {} },
        Labels: { "kontor.health-check-path": "/healthz" },
        Env: ["A=1=2", "=odd", "B"],
      }),
    ).toEqual({
      argv: ["/entry", "serve"],
      port: 8080,
      health_check_path: "/healthz",
      user: "1000:1000",
      cwd: "/srv",
      env: { A: "1=2" },
    });
  });

  test("treats malformed values of the configuration as absent", () => {
    expect(
      runOf({ ExposedPorts: { "99999/tcp": {} }, Labels: { "kontor.health-check-path": "http://x" } }),
    ).toEqual({ argv: [], port: null, health_check_path: null, user: null, cwd: "/", env: {} });
  });
});
