/**
 * From a push to rows that are back: an app with the clients that people use writes to both of its project's databases by
 * the addresses it is given, loses what it wrote, and has it again from a backup, as its visitors see. Another
 * workspace's app does not find them.
 */
import { cpSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { type Addon, backedUp, createAddon, restored } from "./support/addons.ts";
import { eventually } from "./support/answers.ts";
import { ended, makeProject, type Project, pushDirectory, visit } from "./support/projects.ts";
import { type Server, startServer } from "./support/server.ts";

let server: Server;
let project: Project;
let postgres: Addon;
let redis: Addon;
/** The app with all that it depends on, so that its build asks no registry. */
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

async function deployed(one: Project): Promise<void> {
  await pushDirectory(server, one, repository);
  expect(await ended(server, one)).toMatchObject({ status: "live", error: null });
}

/** By its public address. */
async function ask(one: Project, path: string): Promise<unknown> {
  const { status, text } = await visit(server, one, path);
  expect(status, text).toBe(200);
  return JSON.parse(text) as unknown;
}

/** Its connections were ended, and it opens others. */
function read(): Promise<unknown> {
  return eventually(
    () => visit(server, project, "/read"),
    ({ status }) => status === 200,
  ).then(({ text }) => JSON.parse(text) as unknown);
}

test(
  "what an app wrote to its databases and lost is back after a restore",
  { timeout: 600_000 },
  async () => {
    await deployed(project);
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

    for (const { addon, backup } of backups) await restored(server, addon, backup);
    expect(await read()).toEqual(held);
    await ask(project, "/write?text=five");
    expect(await ask(project, "/read")).toEqual({ rows: [...held.rows, "five"], counted: 4 });
  },
);

test(
  "an app of another workspace finds neither the name nor the address of an add-on",
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
    await deployed(other);
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
