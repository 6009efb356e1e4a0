/**
 * Apps on real machines of both isolation kinds. A fault inside an app harms only that app, and sleep, wake and a
 * switch under load lose no request. The test calls the app layer as deployments do, and the ingress directly.
 */
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import type { App } from "../server/src/app.ts";
import { openDatabase } from "../server/src/db/db.ts";
import type { Database, Db } from "../server/src/schema.ts";
import { ensureEmbedded } from "../server/src/db/embedded/ensure-embedded.ts";
import { migrate } from "../server/src/db/migrate.ts";
import { systemClock } from "../server/src/lib/clock.ts";
import { openMachines } from "../server/src/machines/open.ts";
import { Apps } from "../server/src/platform/apps/apps.ts";
import { requestStatus } from "../server/src/platform/apps/release/probe.ts";
import { sleep } from "../server/src/platform/apps/running/sleep.ts";
import { candidate, deploy, makeEnvironment } from "../server/src/platform/apps/testing/apps-host.ts";
import { wake } from "../server/src/platform/apps/running/wake.ts";
import { silentLog, testConfig, testSecrets } from "../server/test/harness.ts";
import { removeHostTraces } from "./support/clean.ts";
import { eventually } from "./support/answers.ts";
import { linkImages } from "./support/images.ts";

const parent = process.env["KONTOR_E2E_DATA"] ?? "/var/tmp";
const port = 3000;
const { signal } = new AbortController();
let host: { app: Omit<App, "jobs">; apps: Apps; image: string };
let db: Db;
const opened = new AsyncDisposableStack();

afterAll(() => opened.disposeAsync());

beforeAll(async () => {
  const dataDir = mkdtempSync(join(parent, "kontor-apps-"));
  chmodSync(dataDir, 0o711);
  opened.defer(() => rmSync(dataDir, { recursive: true, force: true }));
  await linkImages(dataDir, ["node-22"]);
  const embedded = await ensureEmbedded(dataDir);
  opened.defer(() => removeHostTraces(dataDir));
  await migrate(embedded.connection);
  const database = openDatabase<Database>(embedded.connection, { maxConnections: 10, onError: () => {} });
  db = database.db;
  opened.defer(() => database.close());
  const config = {
    ...testConfig({
      runtime: "gvisor",
      appDrainSeconds: "5",
      cpuOvercommit: "100",
      memoryOvercommit: "10",
      uplink: inject("internet"),
    }),
    dataDir,
  };
  const base = { config, db, clock: systemClock, log: silentLog };
  const machines = await openMachines(base);
  opened.defer(() => machines.close());
  opened.defer(async () => {
    for (const { machine } of await machines.host.list()) {
      await machines.host.remove({ machine, hostEpoch: machines.host.epoch, generation: 1 });
    }
  });
  const app = { ...base, machines, secrets: testSecrets() };
  const apps = new Apps(app);
  const noReaction = { onServerStart: async () => {}, ended: async () => {} };
  await machines.start(app as App, { sandbox: noReaction, build: noReaction, app: apps.machineOwner });
  await apps.start();
  opened.defer(() => apps.close());
  apps.serveThrough({
    drained: async () => {},
    visit: async (name, path, { machine }) => {
      const route = apps.routes.find(name);
      if (route?.machine !== machine) throw new Error(`${name} leads elsewhere`);
      const status = await requestStatus(
        machines.connect(machine),
        { port, path, host: name },
        AbortSignal.timeout(5_000),
      );
      if (status === undefined) throw new Error(`${name} does not answer`);
    },
  });
  const { id: image } = await machines.images.ensure("node-22");
  host = { app, apps, image };
}, 120_000);

/** Returns the command of a web server that runs `before` first. */
function server(before = ""): string[] {
  const script = `
    const http = require("node:http");
    ${before}
    http.createServer((request, response) => {
      if (request.url === "/hog") { const held = []; setInterval(() => held.push(Buffer.alloc(32 << 20, 1)), 20); }
      if (request.url === "/bomb") {
        const { spawn } = require("node:child_process");
        for (let n = 0; n < 2000; n += 1) spawn("sleep", ["60"]).on("error", () => {});
      }
      if (request.url === "/flood") {
        require("node:child_process").spawn("sh", ["-c", "yes a line of output | head -c 200000000"], { stdio: "inherit" });
      }
      response.end(String(process.pid));
    }).listen(${port}, () => console.log("listens"));`;
  return ["node", "-e", script];
}

/** Requests the app at its current upstream, and wakes it first if it sleeps. */
async function get(environmentId: string, path = "/"): Promise<number | undefined> {
  for (let attempt = 0; attempt < 5; attempt += 1) {
    const route = host.apps.routes.of(environmentId);
    if (route?.state === "asleep") await wake(host.apps, environmentId);
    else if (route?.machine) {
      const status = await requestStatus(
        host.app.machines.connect(route.machine),
        { port, path, host: "app.test" },
        signal,
      );
      if (status !== undefined) return status;
      await pause(50);
    }
  }
  return undefined;
}

async function texts(environmentId: string): Promise<string[]> {
  return (await host.apps.ring(environmentId).tail(1_000_000)).lines.map(({ text }) => text);
}

const stateOf = async (environmentId: string) => host.apps.routes.of(environmentId)?.state;

describe.each(["native", "gvisor"] as const)("%s", (isolation) => {
  const given = { isolation, port };

  test("an app goes live, is replaced by the next deployment, and exits on SIGTERM", async () => {
    const { environment } = await makeEnvironment(db);
    const leaves = "process.on('SIGTERM', () => { console.log('asked to end'); process.exit(0); });";
    await deploy(host, environment, 1, { ...given, argv: server(leaves) });
    expect(await get(environment.id)).toBe(200);
    await deploy(host, environment, 2, { ...given, argv: server() });
    expect(await get(environment.id)).toBe(200);
    await eventually(
      () => texts(environment.id),
      (lines) => lines.includes("asked to end"),
    );
  });

  test("reports an app that exits at its start", async () => {
    const { environment } = await makeEnvironment(db);
    const ends = await candidate(host, environment, 1, {
      ...given,
      argv: ["node", "-e", "console.error('no database'); process.exit(7)"],
    });
    await expect(ends.waitHealthy(signal)).rejects.toThrow(/exit code 7\. Last output:\nno database/);
    await ends.discard();
  });

  test("restarts an app that is killed because it ran out of memory, and reports the cause", async () => {
    const { environment } = await makeEnvironment(db);
    await deploy(host, environment, 1, { ...given, argv: server() });
    await get(environment.id, "/hog");
    await eventually(
      () => texts(environment.id),
      (lines) => lines.some((line) => line.includes("out of memory")),
    );
    await eventually(
      () => stateOf(environment.id),
      (state) => state === "live",
    );
    expect(await get(environment.id)).toBe(200);
  });

  test("a fork bomb harms only its own app", async () => {
    const { environment } = await makeEnvironment(db);
    const { environment: other } = await makeEnvironment(db);
    await deploy(host, other, 1, { ...given, argv: server() });
    await deploy(host, environment, 1, { ...given, argv: server() });
    await get(environment.id, "/bomb");
    expect(await get(other.id)).toBe(200);
    await host.apps.of(environment.id)[0]?.guest()?.ping();
  });

  test("a flood of output blocks neither the app nor the server, and the log counts the dropped bytes", async () => {
    const { environment } = await makeEnvironment(db);
    await deploy(host, environment, 1, { ...given, argv: server() });
    expect(await get(environment.id, "/flood")).toBe(200);
    expect(await get(environment.id)).toBe(200);
    await eventually(
      () => texts(environment.id),
      (lines) => lines.some((line) => /bytes of output were dropped/.test(line)),
    );
  });

  test("an app that sleeps and wakes under load loses no request and keeps its process", async () => {
    const { environment } = await makeEnvironment(db);
    await deploy(host, environment, 1, { ...given, argv: server() });
    let isOver = false;
    const statuses = new Map<number | undefined, number>();
    const load = Array.from({ length: 4 }, async () => {
      while (!isOver) {
        const status = await get(environment.id);
        statuses.set(status, (statuses.get(status) ?? 0) + 1);
        await pause(10);
      }
    });
    for (let n = 0; n < 5; n += 1) {
      await sleep(host.apps, environment.id);
      await pause(50);
      await wake(host.apps, environment.id);
      await pause(100);
    }
    isOver = true;
    await Promise.all(load);
    expect([...statuses.keys()]).toEqual([200]);
    expect(host.apps.serving(environment.id)?.row.restart_count).toBe(0);
  });
});
