/** Pulls images from a registry on loopback, with the fake builder: from a reference to the image's row. */
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FakeBuilder } from "@kontor/runtime/fake/builder.ts";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { afterAll, expect, onTestFinished, test } from "vitest";
import { openMachines } from "#machines/open.ts";
import { makePerson } from "../../test/factories.ts";
import { silentLog, testClock, testConfig, testDatabase, testSecrets } from "../../test/harness.ts";
import { BuildFailed, findAppImage, findEqualAppImage } from "./app-images.ts";
import { findRegistryImage, pullAppImage, type PullRequest } from "./pulled-images.ts";
import { parseReference } from "./registry/reference.ts";
import { makeImage } from "./registry/testing/image.ts";
import { TestRegistry } from "./registry/testing/registry.ts";

const { db } = await testDatabase();
const dataDir = mkdtempSync(join(tmpdir(), "kontor-pulled-images-"));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
const config = testConfig({ dataDir, allowPrivateHosts: "127.0.0.0/8" });
const clock = testClock();
const driver = new FakeDriver({ directory: join(dataDir, "machines") });
const machines = await openMachines({
  config,
  db,
  clock,
  log: silentLog,
  driver,
  builder: new FakeBuilder(),
});
afterAll(() => machines.close());
const app = { db, machines, config, clock, log: silentLog, secrets: testSecrets() };
const into = join(dataDir, "pulled");
const image = makeImage([[{ path: "app", bytes: "x".repeat(10_000) }]], {
  config: { Entrypoint: ["/app"], ExposedPorts: { "9000/tcp": {} }, User: "1000", Env: ["MODE=web"] },
});

async function open() {
  const registry = await TestRegistry.open();
  onTestFinished(() => registry[Symbol.asyncDispose]());
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
  const request: PullRequest = {
    workspaceId: workspace.id,
    projectId: id,
    deploymentId: randomUUID(),
    plan: "team",
    reference: parseReference(`${registry.host}/team/app:1`)!,
    credential: null,
  };
  return { registry, request };
}

function hooks() {
  const fractions: number[] = [];
  const { signal } = new AbortController();
  return {
    fractions,
    log: () => {},
    progress: ({ fraction }: { fraction: number }) => void fractions.push(fraction),
    signal,
  };
}

test("stores a pulled image with its registry's digest, and with its command, port and user", async () => {
  const { registry, request } = await open();
  const digest = registry.push("team/app:1", image);
  const found = await findRegistryImage(app, request, hooks());
  expect(found.digest).toBe(digest);
  expect(await findEqualAppImage(app, request.projectId, found.key)).toBe(undefined);
  const seen = hooks();
  const pulled = await pullAppImage(app, { ...request, found, into }, seen);
  expect(pulled).toMatchObject({
    tag: "b1",
    digest,
    run: { argv: ["/app"], port: 9000, user: "1000", env: { MODE: "web" } },
  });
  expect(seen.fractions).toEqual(seen.fractions.toSorted((a, b) => a - b));
  expect(existsSync(into)).toBe(false);
  expect(await findAppImage(app, request.projectId, "b1")).toEqual(pulled);
  expect(await findEqualAppImage(app, request.projectId, found.key)).toEqual(pulled);
  // An image of another project is not reused.
  const other = await open();
  expect(await findEqualAppImage(app, other.request.projectId, found.key)).toBe(undefined);
});

test("reports the reference and the cause of a failed pull, and leaves no directory", async () => {
  const { registry, request } = await open();
  const missing = findRegistryImage(app, request, hooks());
  await expect(missing).rejects.toThrow(
    `${request.reference.text}: ${registry.host} has no such image or tag.`,
  );
  await expect(missing).rejects.toBeInstanceOf(BuildFailed);

  registry.push("team/app:1", image);
  const found = await findRegistryImage(app, request, hooks());
  registry.onBlob = (_, response) => {
    response.end("other bytes");
    return true;
  };
  await expect(pullAppImage(app, { ...request, found, into }, hooks())).rejects.toThrow(
    "other bytes than its manifest names",
  );
  expect(existsSync(into)).toBe(false);
});

test.each<[string, Record<string, unknown>]>([
  ["a NUL in its command", { Cmd: ["/app\0"] }],
  ["half a character in its environment", { Env: ["A=\ud800"] }],
  ["an environment of numbers", { Env: [1] }],
  ["a user that is an object", { User: { name: "root" } }],
  ["a NUL in its directory", { WorkingDir: "/\0" }],
  ["an environment of 3 MB", { Env: [`A=${"x".repeat(3_000_000)}`] }],
])("refuses an image with %s, and gives the owner the reason", async (_, config) => {
  const { registry, request } = await open();
  registry.push("team/app:1", makeImage([[{ path: "a", bytes: "a" }]], { config }));
  const found = await findRegistryImage(app, request, hooks());
  const pulling = pullAppImage(app, { ...request, found, into }, hooks());
  await expect(pulling).rejects.toBeInstanceOf(BuildFailed);
  expect(await findAppImage(app, request.projectId, "b1")).toBe(undefined);
});

test("refuses addresses of this host unless the operator allowed them", async () => {
  const { registry, request } = await open();
  registry.push("team/app:1", image);
  const closed = { ...app, config: { ...config, allowPrivateHosts: testConfig({}).allowPrivateHosts } };
  const pulling = findRegistryImage(closed, request, hooks());
  await expect(pulling).rejects.toThrow("resolves to a private or internal address");
  expect(registry.seen).toEqual([]);
});
