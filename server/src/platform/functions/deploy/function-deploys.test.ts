import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { sweepAppImages } from "#builds/app-images.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { openMachines } from "#machines/open.ts";
import { silentLog, testClock, testConfig, testDatabase, testSecrets } from "../../../../test/harness.ts";
import { personOn } from "#platform/testing/platform-app.ts";
import { createFunction } from "../create.ts";
import { removeFunction, deleteFunction } from "../delete.ts";
import { deployFunction, queueDeploy } from "./queue-deploy.ts";
import { FunctionDeploys } from "./function-deploys.ts";
import { get } from "../functions.ts";
import { HandlerFailed } from "#platform/instances/errors.ts";
import type { FunctionParts } from "../parts.ts";
import { FunctionCreate, FunctionUpdate } from "../schema.ts";
import { findVersion, type VersionRow } from "../store.ts";
import { noInstances } from "../testing/no-instances.ts";
import { updateFunction } from "../update.ts";

const { db } = await testDatabase();
const dataDir = mkdtempSync(join(tmpdir(), "kontor-function-deploys-"));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
const config = testConfig({ dataDir });
const builder = new FakeBuilder();
const driver = new FakeDriver({ directory: join(dataDir, "machines") });
const clock = testClock();
const machines = await openMachines({ config, db, clock, log: silentLog, driver, builder });
afterAll(() => machines.close());
const app = { config, db, clock, machines, secrets: testSecrets(), log: silentLog } as unknown as App;

/** Fake proof of a version. `lock` is the lock file that an installer would have left. */
const played = {
  lock: null as string | null,
  proved: [] as VersionRow[],
  switched: [] as string[],
  during: (async () => {}) as (version: VersionRow) => Promise<void>,
};
const parts: FunctionParts = {
  ...noInstances,
  prove: async (version) => {
    await played.during(version);
    played.proved.push(version);
    return { lock: played.lock };
  },
  switched: async (id) => void played.switched.push(id),
  isIdle: () => false,
};
const builds: { dockerfile: string; files: Record<string, string> }[] = [];

function begin() {
  const stops = new AbortController();
  // Each server has build slots of its own.
  const deploys = new FunctionDeploys({ ...app, config: { ...config } }, parts);
  return { run: () => deploys.run(stops.signal), stop: () => stops.abort() };
}
let server = begin();

afterEach(async () => {
  onKillPoint(undefined);
  played.lock = null;
  played.during = async () => {};
  builder.during = record;
  await db.deleteFrom("functions").execute();
  server = begin();
});

const record: FakeBuilder["during"] = async ({ dockerfile, checkout }) => {
  const names = readdirSync(checkout, { recursive: true, withFileTypes: true });
  const files = names
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => [
      join(parentPath, name).slice(checkout.length + 1),
      readFileSync(join(parentPath, name), "utf8"),
    ]);
  builds.push({ dockerfile, files: Object.fromEntries(files) });
};
builder.during = record;

let named = 0;

async function make(more: object = {}): Promise<{ actor: Actor; id: string }> {
  return makeFor(await personOn(db, "pro"), more);
}

async function makeFor(actor: Actor, more: object = {}): Promise<{ actor: Actor; id: string }> {
  const body = {
    name: `deployed-${++named}`,
    runtime: "nodejs",
    handler_code: 'export default () => "hello"',
    ...more,
  };
  const { id } = await createFunction(app, parts, actor, FunctionCreate.parse(body));
  return { actor, id };
}

async function deploy({ actor, id }: { actor: Actor; id: string }) {
  const version = await queueDeploy(app, actor, id);
  await server.run();
  return { version: (await findVersion(db, version))!, record: await get(app, parts, actor, id) };
}

const change = ({ actor, id }: { actor: Actor; id: string }, input: object) =>
  updateFunction(app, parts, actor, id, FunctionUpdate.parse(input));

/** Stops the server at the kill point for ever. The next server does not know that the stopped one exists. */
async function dieAt(point: string): Promise<void> {
  const there = Promise.withResolvers<void>();
  onKillPoint(async (at) => {
    if (at !== point) return;
    there.resolve();
    await new Promise(() => {});
  });
  await Promise.race([there.promise, server.run().then(() => expect.unreachable(`not at ${point}`))]);
  onKillPoint(undefined);
  server = begin();
}

test("starts a payer's single deploy before another payer's twenty waiting deploys", async () => {
  const busy = await personOn(db, "team");
  const waiting: string[] = [];
  for (let n = 0; n < 20; n += 1) {
    waiting.push(await queueDeploy(app, busy, (await makeFor(busy)).id));
    clock.advance(1);
  }
  const { actor, id } = await make();
  const other = await queueDeploy(app, actor, id);
  const proved = played.proved.length;
  await server.run();
  const order = played.proved.slice(proved).map((version) => version.id);
  expect(order).toHaveLength(21);
  expect(order.slice(0, 3)).toEqual([waiting[0], other, waiting[1]]);
});

test("keeps a deploy waiting while its workspace is suspended, before its start and during it", async () => {
  const { actor, id } = await make();
  const hold = (since: Date | null) =>
    db
      .updateTable("workspaces")
      .set({ held_since: since })
      .where("id", "=", actor.workspaces[0]!.id)
      .execute();
  const version = await queueDeploy(app, actor, id);
  played.during = async () => {
    await hold(clock.now());
    // The deploy checks for a suspension four times a second.
    await new Promise((resolve) => setTimeout(resolve, 1_000));
  };
  await server.run();
  expect(await findVersion(db, version)).toMatchObject({ state: "building", error: null, attempts: 0 });
  played.during = async () => {};
  await server.run();
  expect(await findVersion(db, version)).toMatchObject({ state: "building" });
  await hold(null);
  await server.run();
  expect(await findVersion(db, version)).toMatchObject({ state: "live" });
});

test("does not fail a version whose instance freezes before the suspension is noticed", async () => {
  const { actor, id } = await make();
  const hold = (since: Date | null) =>
    db
      .updateTable("workspaces")
      .set({ held_since: since })
      .where("id", "=", actor.workspaces[0]!.id)
      .execute();
  const version = await queueDeploy(app, actor, id);
  played.during = async () => {
    await hold(clock.now());
    throw new HandlerFailed("Nothing answers.");
  };
  await server.run();
  expect(await findVersion(db, version)).toMatchObject({ state: "building", error: null, attempts: 0 });
  played.during = async () => {};
  await hold(null);
  await server.run();
  expect(await findVersion(db, version)).toMatchObject({ state: "live" });
});

describe("function deploys", () => {
  test("deploys the stored code and makes it live", async () => {
    const made = await make();
    expect(await get(app, parts, made.actor, made.id)).toMatchObject({ status: "created" });
    const { version, record: after } = await deploy(made);
    expect(version).toMatchObject({ number: 1, state: "live", image_id: expect.stringMatching(/^app_/) });
    expect(after).toMatchObject({
      status: "live",
      pending_deploy: false,
      error: null,
      last_deployed_at: clock.now().toISOString(),
    });
    expect(played.proved.at(-1)).toMatchObject({ id: version.id, image_id: version.image_id });
    expect(played.switched.at(-1)).toBe(made.id);
    const news = await db
      .selectFrom("notifications")
      .select("kind")
      .where("title", "like", "%deployed-%")
      .execute();
    expect(news.at(-1)).toEqual({ kind: "deploy_succeeded" });
    expect(readdirSync(join(dataDir, "work", "functions"))).toEqual([]);
  });

  test("writes a caller's text to files, and not to a Dockerfile instruction", async () => {
    const evil = 'RUN evil\nFROM scratch #"; ${PATH}';
    const made = await make({ handler_code: evil, dependencies: { nanoid: "^5" } });
    await deploy(made);
    const { dockerfile, files } = builds.at(-1)!;
    expect(dockerfile).not.toContain("evil");
    expect(dockerfile).toContain("FROM node:22-slim");
    expect(files["handler.mjs"]).toBe(evil);
    expect(JSON.parse(files["package.json"]!)).toMatchObject({ dependencies: { nanoid: "^5" } });
    expect(files).toHaveProperty(["function/nodejs/main.mjs"]);
    expect(Object.keys(files)).not.toContain("package-lock.json");
  });

  test("installs packages of a Python function from its requirements", async () => {
    const code = "def handler(request):\n    return 1\n";
    const made = await make({ runtime: "python", handler_code: code, dependencies: { requests: ">=2,<3" } });
    await deploy(made);
    const { dockerfile, files } = builds.at(-1)!;
    expect(dockerfile).toContain("FROM python:3.13-slim");
    expect(files["requirements.txt"]).toBe("requests>=2,<3\n");
    expect(files["handler.py"]).toBe(code);
    expect(files).toHaveProperty(["function/python/main.py"]);
  });

  test("installs no packages for a function without dependencies", async () => {
    await deploy(await make());
    expect(builds.at(-1)!.dockerfile).not.toContain("npm");
  });

  test("installs unchanged dependencies from the lock of the last deploy", async () => {
    const made = await make({ dependencies: { nanoid: "^5" } });
    played.lock = "the lock";
    expect((await deploy(made)).version.lock).toBe("the lock");
    await change(made, { handler_code: "export default () => 2" });
    expect((await deploy(made)).version).toMatchObject({ number: 2, lock: "the lock" });
    expect(builds.at(-1)!.files["package-lock.json"]).toBe("the lock");
    expect(builds.at(-1)!.dockerfile).toContain("npm ci");
    await change(made, { dependencies: { nanoid: "^4" } });
    await deploy(made);
    expect(builds.at(-1)!.files).not.toHaveProperty(["package-lock.json"]);
    expect(builds.at(-1)!.dockerfile).toContain("npm install");
  });

  test("builds no image for code that was deployed recently, and reuses its image", async () => {
    const made = await make({ dependencies: { nanoid: "^5" } });
    const first = (await deploy(made)).version;
    const count = builds.length;
    expect((await deploy(made)).version.image_id).toBe(first.image_id);
    expect(builds).toHaveLength(count);
    await change(made, { handler_code: "export default () => 2" });
    const other = (await deploy(made)).version;
    expect(other.image_id).not.toBe(first.image_id);
    await change(made, { handler_code: 'export default () => "hello"' });
    expect((await deploy(made)).version.image_id).toBe(first.image_id);
    expect(builds).toHaveLength(count + 1);
  });

  test("keeps a change pending that was made during the deploy", async () => {
    const made = await make();
    played.during = async () => void (await change(made, { handler_code: "export default () => 2" }));
    const { record: after, version } = await deploy(made);
    expect(after).toMatchObject({ status: "live", pending_deploy: true });
    expect(version.handler_code).toBe('export default () => "hello"');
  });

  test("leaves no change pending when the code is changed back to the live version", async () => {
    const made = await make();
    await deploy(made);
    const isPendingAfter = async (handler_code: string) =>
      (await change(made, { handler_code })).pending_deploy;
    expect(await isPendingAfter("export default () => 2")).toBe(true);
    expect(await isPendingAfter('export default () => "hello"')).toBe(false);
  });

  test("refuses a second deploy of a function while its first one runs", async () => {
    const made = await make();
    const version = await queueDeploy(app, made.actor, made.id);
    expect(await get(app, parts, made.actor, made.id)).toMatchObject({ status: "building" });
    await expect(queueDeploy(app, made.actor, made.id)).rejects.toMatchObject({
      code: "deployment_in_progress",
      status: 409,
      meta: { version_id: version },
    });
    const ends = await Promise.allSettled(
      Array.from({ length: 4 }, async () => queueDeploy(app, made.actor, made.id)),
    );
    expect(ends.every(({ status }) => status === "rejected")).toBe(true);
  });

  test("responds at the end of a deploy, or at once if wait is false", async () => {
    const made = await make();
    expect(await deployFunction(app, parts, made.actor, made.id, { wait: false })).toMatchObject({
      status: "building",
    });
    await server.run();
    const waiting = deployFunction(app, parts, made.actor, made.id, { wait: true });
    const there = async () => (await get(app, parts, made.actor, made.id)).status === "building";
    while (!(await there())) await new Promise((next) => setImmediate(next));
    await server.run();
    expect(await waiting).toMatchObject({ status: "live" });
  });

  test("refuses a deploy of another workspace's function, and of a deleted one", async () => {
    const made = await make();
    const eve = await personOn(db, "pro");
    await expect(queueDeploy(app, eve, made.id)).rejects.toMatchObject({ code: "function_not_found" });
    await deleteFunction(app, made.actor, made.id);
    await expect(queueDeploy(app, made.actor, made.id)).rejects.toMatchObject({ status: 404 });
  });
});

describe("failed function deploys", () => {
  test("stores the last output of a failed installer, and keeps the previous version live", async () => {
    const made = await make();
    const first = (await deploy(made)).version;
    await change(made, { dependencies: { "not-there-at-all": "1.0.0" } });
    builder.during = async (_, { log }) => {
      log("npm error 404 Not Found - not-there-at-all@1.0.0\n");
      throw Object.assign(await imageFailed("npm install failed: exit status 1"));
    };
    const { record: after, version } = await deploy(made);
    expect(version).toMatchObject({ state: "failed", image_id: null });
    expect(after).toMatchObject({ status: "live", pending_deploy: true });
    expect(after.error).toContain("npm install failed");
    expect(after.error).toContain("not-there-at-all@1.0.0");
    expect(await findVersion(db, first.id)).toMatchObject({ state: "live" });
    builder.during = record;
    await change(made, { dependencies: {} });
    expect((await deploy(made)).record).toMatchObject({ status: "live", error: null, pending_deploy: false });
  });

  test("stores the stack trace of a handler that does not load", async () => {
    const made = await make({ handler_code: "export default (" });
    played.during = async () => {
      throw new HandlerFailed("SyntaxError: Unexpected end of input\n    at handler.mjs:1");
    };
    const { record: after } = await deploy(made);
    expect(after).toMatchObject({ status: "failed", pending_deploy: true, last_deployed_at: null });
    expect(after.error).toContain("SyntaxError: Unexpected end of input");
    expect(played.switched).not.toContain(made.id);
  });

  test("hides the details of an internal error from the owner", async () => {
    const made = await make();
    played.during = async () => {
      throw new Error("EACCES: /srv/kontor/secret");
    };
    const { record: after } = await deploy(made);
    expect(after.error).toBe(
      "The deploy failed on this host, and the server's log has the cause. Deploy again.",
    );
  });

  test("keeps the first line and the last lines of a long error text", async () => {
    const made = await make();
    played.during = async () => {
      throw new HandlerFailed(Array.from({ length: 5000 }, (_, at) => `line ${at}`).join("\n"));
    };
    const { error } = (await deploy(made)).record;
    expect(error!.length).toBeLessThanOrEqual(4100);
    expect(error).toMatch(/^line 0\n/);
    expect(error).toMatch(/line 4999$/);
  });
});

describe("deploys of functions and crashes of the server", () => {
  test.each([
    ["app_build.made", 2],
    ["function_deploy.built", 1],
    ["function_deploy.proved", 1],
  ])("resumes a deploy after a crash at %s", async (point, expected) => {
    const made = await make();
    const before = builds.length;
    const id = await queueDeploy(app, made.actor, made.id);
    await dieAt(point);
    await server.run();
    expect(await findVersion(db, id)).toMatchObject({ state: "live", attempts: 2 });
    expect(builds.length - before).toBe(expected);
    expect(await get(app, parts, made.actor, made.id)).toMatchObject({ status: "live" });
  });

  test("keeps a version live when a crash follows the switch", async () => {
    const made = await make();
    const id = await queueDeploy(app, made.actor, made.id);
    await dieAt("function_deploy.switched");
    await server.run();
    expect(await findVersion(db, id)).toMatchObject({ state: "live", attempts: 1 });
  });

  test("fails a version after three crashes of the server during its deploy", async () => {
    const made = await make();
    await queueDeploy(app, made.actor, made.id);
    for (let times = 0; times < 3; times += 1) await dieAt("function_deploy.built");
    await server.run();
    const after = await get(app, parts, made.actor, made.id);
    expect(after).toMatchObject({ status: "failed", error: expect.stringContaining("3 times") });
  });

  test("resumes a deploy after a graceful shutdown, without counting the attempt", async () => {
    const made = await make();
    const id = await queueDeploy(app, made.actor, made.id);
    builder.during = async () => server.stop();
    await server.run();
    expect(await findVersion(db, id)).toMatchObject({ state: "building", attempts: 0 });
    builder.during = record;
    server = begin();
    await server.run();
    expect(await findVersion(db, id)).toMatchObject({ state: "live" });
  });
});

describe("images of functions", () => {
  const there = async (id: string | null) => (await builder.images()).includes(id!);

  test("keeps the images of the live version and the two before it, and prunes the others", async () => {
    const made = await make();
    const ids: string[] = [];
    for (let version = 0; version < 5; version += 1) {
      await change(made, { handler_code: `export default () => ${version}` });
      ids.push((await deploy(made)).version.image_id!);
      await sweepAppImages(app);
    }
    expect(await Promise.all(ids.map(there))).toEqual([false, false, true, true, true]);
  });

  test("prunes the images of a deleted function", async () => {
    const made = await make();
    const { version } = await deploy(made);
    await deleteFunction(app, made.actor, made.id);
    await removeFunction(app, made.id, parts);
    await sweepAppImages(app);
    expect(await there(version.image_id)).toBe(false);
  });

  test("prunes the image of a function that is deleted during its build", async () => {
    const made = await make();
    const before = await builder.images();
    builder.during = async (build, hooks) => {
      await record(build, hooks);
      await deleteFunction(app, made.actor, made.id);
    };
    await queueDeploy(app, made.actor, made.id);
    await server.run();
    await removeFunction(app, made.id, parts);
    await sweepAppImages(app);
    expect((await builder.images()).filter((id) => !before.includes(id))).toEqual([]);
    expect(played.switched).not.toContain(made.id);
  });
});

async function imageFailed(message: string): Promise<Error> {
  const { RuntimeError } = await import("@kontor/runtime/driver.ts");
  return new RuntimeError("image_failed", message);
}
