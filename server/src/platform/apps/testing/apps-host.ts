/**
 * Apps on a real database and the fake driver, which runs their processes on this host. The ingress is a fake that
 * connects to the machine itself. A test can make it fail, or delay a drain.
 */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import type { Db } from "#schema.ts";
import { systemClock } from "#lib/clock.ts";
import { openMachines } from "#machines/open.ts";
import type { MachineOwner } from "#machines/machine-owner.ts";
import { makePerson } from "../../../../test/factories.ts";
import { silentLog, testConfig, testSecrets } from "../../../../test/harness.ts";
import { Apps } from "../apps.ts";
import type { Front } from "../apps-context.ts";
import { requestStatus } from "../release/probe.ts";
import { type Candidate, release, type Release } from "../release/release.ts";

export interface AppsHost {
  app: Omit<App, "jobs">;
  apps: Apps;
  driver: FakeDriver;
  front: FakeFront;
  image: string;
  /** Replaces the server without a shutdown. The processes of the fake driver are lost. */
  restart(): Promise<void>;
}

class FakeFront implements Front {
  readonly visits: string[] = [];
  readonly drains: string[] = [];
  failsNext: Error | undefined;
  holdsDrains: Promise<void> | undefined;
  readonly #apps: () => Apps;

  constructor(apps: () => Apps) {
    this.#apps = apps;
  }

  async drained(machine: string): Promise<void> {
    this.drains.push(machine);
    await this.holdsDrains;
  }

  async visit(host: string, path: string, { machine }: { machine: string }): Promise<void> {
    this.visits.push(host);
    const failure = this.failsNext;
    this.failsNext = undefined;
    if (failure) throw failure;
    const route = this.#apps().routes.find(host);
    if (route?.machine !== machine || route.port === null)
      throw new Error(`${host} leads to another machine`);
    const guest = this.#apps().app.machines.connect(machine);
    const status = await requestStatus(guest, { port: route.port, path, host }, AbortSignal.timeout(5_000));
    if (status === undefined) throw new Error(`${host} does not respond`);
  }
}

const nobody: MachineOwner = { onServerStart: async () => {}, ended: async () => {} };
const recipe = {
  name: "app-base",
  promise: {},
  ways: [{ steps: [], substitute: false }],
  env: {},
  probes: {},
};

export async function appsHost(
  db: Db,
  options: { config?: Partial<Record<ConfigKey, string>> } = {},
): Promise<AppsHost> {
  const directory = await mkdtemp(join(tmpdir(), "kontor-apps-"));
  afterAll(() => rm(directory, { recursive: true, force: true }));
  const overrides = { appDrainSeconds: "5", cpuOvercommit: "100", memoryOvercommit: "10", ...options.config };
  const config = { ...testConfig(overrides), dataDir: directory };
  const secrets = testSecrets();
  const start = async (): Promise<Pick<AppsHost, "app" | "apps" | "driver" | "image">> => {
    const driver = new FakeDriver({ directory: join(directory, "machines") });
    const log = silentLog;
    const machines = await openMachines({ config, db, clock: systemClock, log, driver });
    const { id: image } = await driver.ensureImage(recipe);
    const app = { config, db, machines, secrets, clock: systemClock, log };
    const apps = new Apps(app);
    await machines.start(app as App, { sandbox: nobody, build: nobody, app: apps.machineOwner });
    await apps.start();
    apps.serveThrough(front);
    return { app, apps, driver, image };
  };
  const front = new FakeFront(() => host.apps);
  const host: AppsHost = {
    ...(await start()),
    front,
    restart: async () => {
      await host.apps.close();
      await host.app.machines.close();
      Object.assign(host, await start());
    },
  };
  afterAll(async () => {
    await host.apps.close();
    for (const { id } of await host.driver.list()) await host.driver.remove(id);
    await host.app.machines.close();
  });
  return host;
}

/** Creates an environment in a project of its own. */
export async function makeEnvironment(db: Db, slug = `app${randomBytes(4).toString("hex")}`) {
  const { workspace } = await makePerson(db, { workspace: { plan: "team" } });
  const project = await db
    .insertInto("projects")
    .values({
      workspace_id: workspace.id,
      name: slug,
      branch: "main",
      root_directory: "/",
      health_check_path: "/",
      auto_deploy: true,
      isolation: "native",
      region: "local",
      hook_id: slug,
      hook_secret_sealed: Buffer.alloc(1),
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  const environment = await db
    .insertInto("environments")
    .values({
      project_id: project.id,
      name: "production",
      kind: "production",
      branch: "main",
      host_label: slug,
      size: "small",
    })
    .returningAll()
    .executeTakeFirstOrThrow();
  return { workspace, project, environment };
}

export async function makeDeployment(
  db: Db,
  environment: { id: string; project_id: string },
  number: number,
  status: "live" | "building" = "live",
) {
  return db
    .insertInto("deployments")
    .values({
      project_id: environment.project_id,
      environment_id: environment.id,
      number,
      status,
      trigger_kind: "api",
      trigger_actor: JSON.stringify({ kind: "user", id: "u", label: "u" }),
      steps: "[]",
      finished_at: status === "live" ? new Date() : null,
    })
    .returningAll()
    .executeTakeFirstOrThrow();
}

/** Returns a free port. Processes of the fake driver share the ports of this host. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

/** Returns the command of a web server that responds with its name. The program runs `before` first. */
export function program(name: string, before = ""): string[] {
  const script = `
    const http = require("node:http");
    ${before}
    http.createServer((request, response) => {
      if (request.url === "/exit") process.exit(3);
      if (request.url === "/env") return response.end(JSON.stringify(process.env));
      response.statusCode = request.url === "/bad" ? 503 : 200;
      response.end(${JSON.stringify(name)});
    }).listen(Number(process.env.PORT), () => console.log(${JSON.stringify(`${name} listens`)}));`;
  return [process.execPath, "-e", script];
}

/** Releases an app, and does not wait for its health. */
export async function candidate(
  host: Pick<AppsHost, "app" | "apps"> & { image: string },
  environment: { id: string; project_id: string; host_label: string },
  number: number,
  input: Partial<Release> & { argv: string[] },
): Promise<Candidate & { port: number; deploymentId: string }> {
  const deployment = await makeDeployment(host.app.db, environment, number);
  const port = input.port ?? (await freePort());
  const made = await release(
    host.apps,
    {
      environment,
      deployment,
      image: { imageId: host.image, run: { env: {}, user: null, cwd: "/" } },
      port,
      healthCheckPath: "/",
      env: {},
      isolation: "native",
      size: "small",
      ...input,
    },
    { log: () => {}, signal: new AbortController().signal },
  );
  return { ...made, port, deploymentId: deployment.id };
}

/** Releases an app and makes it live. */
export async function deploy(
  host: Parameters<typeof candidate>[0],
  environment: Parameters<typeof candidate>[1],
  number: number,
  input: Parameters<typeof candidate>[3],
) {
  const made = await candidate(host, environment, number, input);
  const { signal } = new AbortController();
  await made.waitHealthy(signal);
  await made.takeOver(signal);
  return made;
}

/** Sends a request to the label's host, and returns the app's response. */
export async function visit(host: AppsHost, label: string, path = "/"): Promise<string> {
  const route = host.apps.routes.find(host.apps.routes.hostOf(label));
  if (!route || route.machine === null) throw new Error("nothing serves");
  const answer = await fetch(`http://127.0.0.1:${route.port}${path}`);
  return answer.text();
}
