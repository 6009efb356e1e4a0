import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { sweepAppImages } from "#builds/app-images.ts";
import { openMachines } from "#machines/open.ts";
import { silentLog, testClock, testConfig, testDatabase, testSecrets } from "../../../../test/harness.ts";
import { HandlerFailed } from "#platform/instances/errors.ts";
import { personOn } from "#platform/testing/platform-app.ts";
import { createFunction } from "../create.ts";
import { queueDeploy } from "../deploy/queue-deploy.ts";
import { FunctionDeploys } from "../deploy/function-deploys.ts";
import { get } from "../functions.ts";
import type { FunctionParts } from "../parts.ts";
import { queueRollback } from "./rollback.ts";
import { FunctionCreate, FunctionUpdate, toVersion, toVersionSummary } from "../schema.ts";
import { noInstances } from "../testing/no-instances.ts";
import { updateFunction } from "../update.ts";
import { followVersion, getVersion, getVersions, readVersionLog } from "./versions.ts";
import type { VersionNews } from "./version-news.ts";

const { db } = await testDatabase();
const dataDir = mkdtempSync(join(tmpdir(), "kontor-function-versions-"));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
const config = testConfig({ dataDir });
const builder = new FakeBuilder();
const driver = new FakeDriver({ directory: join(dataDir, "machines") });
const clock = testClock();
const machines = await openMachines({ config, db, clock, log: silentLog, driver, builder });
afterAll(() => machines.close());
const app = { config, db, clock, machines, secrets: testSecrets(), log: silentLog } as unknown as App;

let builds = 0;
let proving = async (): Promise<void> => {};
const record: FakeBuilder["during"] = async () => void (builds += 1);
builder.during = record;
const parts: FunctionParts = {
  ...noInstances,
  prove: async () => {
    await proving();
    return { lock: null };
  },
  isIdle: () => false,
};
const server = new FunctionDeploys(app, parts);

afterEach(async () => {
  builder.during = record;
  proving = async () => {};
  await db.deleteFrom("functions").execute();
});

let named = 0;
type TestFunction = { actor: Actor; id: string };

async function make(code = "export default () => 1", plan: "starter" | "pro" = "pro"): Promise<TestFunction> {
  const actor = await personOn(db, plan);
  const body = { name: `versioned-${++named}`, runtime: "nodejs", handler_code: code };
  return { actor, id: (await createFunction(app, parts, actor, FunctionCreate.parse(body))).id };
}

const run = () => server.run(new AbortController().signal);

async function deploy({ actor, id }: TestFunction, code?: string) {
  if (code !== undefined) {
    await updateFunction(app, parts, actor, id, FunctionUpdate.parse({ handler_code: code }));
  }
  const version = await queueDeploy(app, actor, id);
  await run();
  return getVersion(app, actor, { id, versionId: version });
}

async function rollBack({ actor, id }: TestFunction, versionId: string, allowRebuild = false) {
  const version = await queueRollback(app, actor, { id, versionId }, allowRebuild);
  await run();
  return getVersion(app, actor, { id, versionId: version });
}

describe("version lists", () => {
  test("lists number, state, trigger and error of each version, newest first, without code", async () => {
    const made = await make();
    await deploy(made);
    proving = () => Promise.reject(new HandlerFailed("SyntaxError: no"));
    await deploy(made, "export default (");
    const list = (await getVersions(app, made.actor, made.id)).map(toVersionSummary);
    expect(list).toMatchObject([
      { number: 2, status: "failed", error: "SyntaxError: no", image_kept: false, progress: null },
      { number: 1, status: "live", error: null, image_kept: true, trigger: { kind: "api" } },
    ]);
    expect(JSON.stringify(list)).not.toContain("export default");
  });

  test("shows the email address behind a session's deploy until the account is deleted, and does not store it", async () => {
    const made = await make();
    const person = await personOn(db, "pro");
    const by: Actor = {
      ...made.actor,
      kind: "user",
      id: person.userId,
      userId: person.userId,
      label: person.label,
    };
    const versionId = await queueDeploy(app, by, made.id);
    await run();
    const readTriggerActor = async () => {
      const [listed] = (await getVersions(app, made.actor, made.id)).map(toVersionSummary);
      const read = toVersion(await getVersion(app, made.actor, { id: made.id, versionId }));
      expect(read.trigger).toEqual(listed!.trigger);
      return read.trigger!.actor;
    };
    expect(await readTriggerActor()).toEqual({ kind: "user", id: person.userId, label: person.label });
    const stored = await db.selectFrom("function_versions").selectAll().where("id", "=", versionId).execute();
    expect(JSON.stringify(stored)).not.toContain(person.label);
    await db.deleteFrom("users").where("id", "=", person.userId).execute();
    expect(await readTriggerActor()).toMatchObject({ label: "deleted account" });
  });

  test("returns 404 for a version of another workspace's function, or under another function", async () => {
    const made = await make();
    const { id: versionId } = await deploy(made);
    const other = await make();
    await expect(getVersions(app, other.actor, made.id)).rejects.toMatchObject({
      code: "function_not_found",
    });
    await expect(getVersion(app, other.actor, { id: made.id, versionId })).rejects.toMatchObject({
      code: "function_not_found",
    });
    await expect(getVersion(app, other.actor, { id: other.id, versionId })).rejects.toMatchObject({
      code: "version_not_found",
    });
    await expect(queueRollback(app, other.actor, { id: other.id, versionId })).rejects.toMatchObject({
      code: "version_not_found",
    });
  });
});

describe("rollbacks of functions", () => {
  test("rolls back to an earlier version's image without a build, and keeps the stored code", async () => {
    const made = await make();
    const first = await deploy(made);
    await deploy(made, "export default () => 2");
    const before = builds;
    const back = await rollBack(made, first.id);
    expect(toVersion(back)).toMatchObject({
      number: 3,
      status: "live",
      trigger: { kind: "rollback" },
      rolled_back_from: first.id,
      image_reused: true,
      handler_code: "export default () => 1",
    });
    expect(back.image_id).toBe(first.image_id);
    expect(builds).toBe(before);
    expect(await get(app, parts, made.actor, made.id)).toMatchObject({
      status: "live",
      handler_code: "export default () => 2",
      pending_deploy: true,
    });
    const { entries } = await readVersionLog(app, made.actor, { id: made.id, versionId: back.id });
    expect(entries.map(({ text }) => text).join("")).toContain(
      "Nothing is built: the image of version 1 is kept.",
    );
  });

  test("refuses a rollback to a version that was never live, and any rollback on plan starter", async () => {
    const made = await make();
    proving = () => Promise.reject(new HandlerFailed("no"));
    const failed = await deploy(made);
    await expect(rollBack(made, failed.id)).rejects.toMatchObject({ code: "not_rollbackable", status: 409 });
    proving = async () => {};
    const starter = await make(undefined, "starter");
    const first = await deploy(starter);
    await expect(rollBack(starter, first.id)).rejects.toMatchObject({ code: "plan_limit", status: 403 });
  });

  test("requires allow_rebuild when the image is pruned, and then builds the earlier version's own code", async () => {
    const made = await make();
    const first = await deploy(made);
    for (const next of [2, 3, 4]) await deploy(made, `export default () => ${next}`);
    await sweepAppImages(app);
    expect(await builder.images()).not.toContain(first.image_id);
    await expect(rollBack(made, first.id)).rejects.toMatchObject({ code: "image_pruned", status: 409 });
    const before = builds;
    const back = await rollBack(made, first.id, true);
    expect(back).toMatchObject({
      state: "live",
      handler_code: "export default () => 1",
      image_reused: false,
    });
    expect(builds).toBe(before + 1);
  });

  test("shares an image between all versions that use it", async () => {
    const made = await make();
    const first = await deploy(made);
    const second = await deploy(made, "export default () => 2");
    await deploy(made, "export default () => 3");
    const back = await rollBack(made, first.id);
    await sweepAppImages(app);
    expect(await builder.images()).toEqual(expect.arrayContaining([second.image_id, back.image_id]));
    expect((await getVersion(app, made.actor, { id: made.id, versionId: first.id })).image_id).toBe(
      first.image_id,
    );
  });

  test("refuses a rollback while another deploy of the function runs", async () => {
    const made = await make();
    const first = await deploy(made);
    await queueDeploy(app, made.actor, made.id);
    await expect(queueRollback(app, made.actor, { id: made.id, versionId: first.id })).rejects.toMatchObject({
      code: "deployment_in_progress",
    });
    await run();
  });
});

describe("build logs of functions", () => {
  test("stores the builder's output and the handler's stack trace, each with its step", async () => {
    const made = await make();
    builder.during = async (_, { log }) => {
      log("added 12 packages\n");
    };
    proving = () => Promise.reject(new HandlerFailed("SyntaxError: Unexpected end of input"));
    const { id: versionId } = await deploy(made);
    const { entries, truncated } = await readVersionLog(app, made.actor, { id: made.id, versionId });
    const of = (step: string) =>
      entries
        .filter((entry) => entry.step === step)
        .map(({ text }) => text)
        .join("");
    expect(of("build")).toContain("added 12 packages\n");
    expect(of("start")).toContain("SyntaxError: Unexpected end of input\n");
    expect(truncated).toBe(false);
  });

  test("stores the reason of a failed build", async () => {
    const made = await make();
    builder.during = async (_, { log }) => {
      log("npm error 404\n");
      throw new RuntimeError("image_failed", "npm install exited with 1");
    };
    const { id: versionId } = await deploy(made);
    const { entries } = await readVersionLog(app, made.actor, { id: made.id, versionId });
    const text = entries.map((entry) => entry.text).join("");
    expect(text).toMatch(/npm error 404\n[^]*npm install exited with 1\n/);
  });

  test("streams a build log until the version ends, and resumes after any piece", async () => {
    const made = await make();
    const said = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    builder.during = async (_, { log }) => {
      log("halfway\n");
      said.resolve();
      await goOn.promise;
    };
    const versionId = await queueDeploy(app, made.actor, made.id);
    const running = run();
    await said.promise;
    const news: VersionNews[] = [];
    for await (const each of followVersion(app, versionId, new AbortController().signal)) {
      news.push(each);
      if ("text" in each && each.text.includes("halfway")) goOn.resolve();
    }
    await running;
    expect(news.at(-1)).toMatchObject({ status: "live", error: null });
    const { seq } = news.find((each) => "text" in each)!;
    const later: VersionNews[] = [];
    for await (const each of followVersion(app, versionId, new AbortController().signal, seq))
      later.push(each);
    expect(later.every((each) => each.seq >= seq)).toBe(true);
    expect(later.filter((each) => "text" in each)).toEqual(
      news.filter((each) => "text" in each && each.seq > seq),
    );
  });
});

test("shows progress on the function and the version during a build, and no progress afterwards", async () => {
  const made = await make();
  const versionId = await queueDeploy(app, made.actor, made.id);
  const progress = async () => (await get(app, parts, made.actor, made.id)).progress;
  expect(await progress()).toEqual({ step: "queued", percent: 0, message: "Waiting for its turn." });
  const seen: unknown[] = [];
  builder.during = async (_, { log }) => {
    seen.push(await progress());
    log("STEP 3/5: RUN npm ci\n");
    await expect.poll(progress, { timeout: 30_000 }).toMatchObject({ message: "RUN npm ci" });
    seen.push(await progress());
  };
  proving = async () => void seen.push(await progress());
  await run();
  expect(seen).toEqual([
    { step: "build", percent: 5, message: "Building version 1." },
    { step: "build", percent: 37, message: "RUN npm ci" },
    { step: "start", percent: 90, message: "Starting an instance to load the handler." },
  ]);
  expect(await progress()).toBeNull();
  const version = await getVersion(app, made.actor, { id: made.id, versionId });
  expect(toVersion(version)).toMatchObject({ status: "live", progress: null });
});
