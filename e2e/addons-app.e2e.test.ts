/**
 * From a push to restored rows. An app with common clients writes to both databases of its project, at the addresses in
 * its environment. The app loses its data and gets them back from a backup. The test checks each step as a visitor. An
 * app of another workspace does not reach the databases.
 */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { type Addon, backedUp, createAddon, restoreAndWait } from "./support/addons.ts";
import { eventually } from "./support/answers.ts";
import { waitForDeployment, makeProject, type Project, pushDirectory, visit } from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;
let project: Project;
let postgres: Addon;
let redis: Addon;
/**
 * Directory of the app's repository. The repository contains the app's dependencies, so that the build needs no
 * registry.
 */
const repository = mkdtempSync(join(tmpdir(), "kontor-addons-app-"));

beforeAll(async () => {
  vendor();
  const env = { KONTOR_POOL_SIZE: "0", KONTOR_RATE_LIMITS: "off", KONTOR_UPLINK: inject("internet") };
  server = await startServer(env, ["node-22", "postgres-15", "redis-7"]);
  project = await makeProject(server);
  postgres = await createAddon(server, project.id, { kind: "postgres", size: "small" });
  redis = await createAddon(server, project.id, { kind: "redis", size: "small" });
});
afterAll(async () => {
  rmSync(repository, { recursive: true, force: true });
  await server?.destroy();
});

function vendor(): void {
  cpSync(join(import.meta.dirname, "addons-app"), repository, { recursive: true });
  const from = join(import.meta.dirname, "../node_modules");
  const copied = new Set<string>();
  const copy = (name: string) => {
    if (copied.has(name)) return;
    copied.add(name);
    cpSync(join(from, name), join(repository, "node_modules", name), { recursive: true });
    copyDependencies(join(from, name));
  };
  const copyDependencies = (directory: string) => {
    const { dependencies = {} } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8")) as {
      dependencies?: Record<string, string>;
    };
    for (const name of Object.keys(dependencies)) copy(name);
  };
  copyDependencies(repository);
}

async function pushAndWait(one: Project): Promise<void> {
  await pushDirectory(server, one, repository);
  expect(await waitForDeployment(server, one)).toMatchObject({ status: "live", error: null });
}

/** Requests the app at its public address. */
async function ask(one: Project, path: string): Promise<unknown> {
  const { status, text } = await visit(server, one, path);
  expect(status, text).toBe(200);
  return JSON.parse(text) as unknown;
}

/** Reads the app's data. The restore closed the app's connections, and the app opens new connections. */
function read(): Promise<unknown> {
  return eventually(
    () => visit(server, project, "/read"),
    ({ status }) => status === 200,
  ).then(({ text }) => JSON.parse(text) as unknown);
}

test("a restore returns data that an app deleted from its add-ons", { timeout: 600_000 }, async () => {
  await pushAndWait(project);
  for (const text of ["one", "two", "three"]) await ask(project, `/write?text=${text}`);
  const held = { rows: ["one", "two", "three"], counted: 3 };
  expect(await ask(project, "/read")).toEqual(held);

  const backups = [
    { addon: postgres, backup: await backedUp(server, postgres) },
    { addon: redis, backup: await backedUp(server, redis) },
  ];
  await ask(project, "/write?text=four");
  await ask(project, "/lose");
  const lost = await visit(server, project, "/read");
  expect(lost).toMatchObject({ status: 500, text: expect.stringContaining('"visits" does not exist') });

  for (const { addon, backup } of backups) await restoreAndWait(server, addon, backup);
  expect(await read()).toEqual(held);
  await ask(project, "/write?text=five");
  expect(await ask(project, "/read")).toEqual({ rows: [...held.rows, "five"], counted: 4 });
});

test(
  "another workspace's app cannot reach an add-on by name or by address",
  { timeout: 300_000 },
  async () => {
    const team = await server.api("POST", "/api/v1/teams", { body: { name: "The others" } });
    expect(team.status, JSON.stringify(team.body)).toBe(201);
    const minted = await server.api("POST", "/api/v1/api-tokens", {
      body: { name: "e2e", expires_in_days: 30, scopes: null, workspace: team.body.id },
    });
    const { token } = minted.body as { token: string };
    const made = await server.api("POST", "/api/v1/projects", { token, body: { name: "elsewhere" } });
    expect(made.status, JSON.stringify(made.body)).toBe(201);
    const other = made.body as Project;
    await pushAndWait(other);
    for (const addon of [postgres, redis]) {
      const [row] = await server.sql(
        "select serves ->> 'address' as address from machines where owner_id = $1 and desired = 'running'",
        [addon.id],
      );
      const path = `/reach?name=${addon.host}&address=${String(row?.["address"])}&port=${addon.port}`;
      expect(await ask(project, path)).toEqual({ has: 2, name: "found", address: "reached" });
      const told = (await ask(other, path)) as { name: string; address: string };
      expect(told).toMatchObject({ has: 0, name: expect.stringMatching(/^(ENOTFOUND|EAI_AGAIN)$/) });
      expect(["ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH"]).toContain(told.address);
    }
    expect((await server.api("DELETE", `/api/v1/projects/${other.id}`)).status).toBe(204);
  },
);
