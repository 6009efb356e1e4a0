/** A complete server without a socket: every route of the three APIs, two users, and fake machines. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";
import { FakeDriver } from "@kontor/runtime/fake/driver.ts";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { findActor, findActors } from "#accounts/find-actor.ts";
import { workspaceOf } from "#accounts/suspension/workspace-of.ts";
import type { Scope } from "#accounts/roles.ts";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { ownApi } from "#agent/workers/api.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import type { App } from "#app.ts";
import { apiRoutes } from "#compose/apis.ts";
import { machineOwners, makeOwners } from "#compose/parts.ts";
import { loadConfig } from "#config.ts";
import { createHttpServer, type Routes } from "#http/server.ts";
import { openJobs } from "#jobs/jobs.ts";
import { systemClock } from "#lib/clock.ts";
import { openMachines } from "#machines/open.ts";
import type { FunctionInstances } from "#platform/instances/instances.ts";
import { hostLaunch } from "#platform/instances/testing/instances-host.ts";
import type { Apps } from "#platform/apps/apps.ts";
import { Backups } from "#platform/backups/backups.ts";
import { openBlobs } from "#platform/backups/blobs.ts";
import { protocol } from "#sandbox/code/interpreter.ts";
import { playInterpreter } from "#sandbox/testing/interpreter.ts";
import { makePerson, makeToken } from "../factories.ts";
import { silentLog, testDatabase, testSecrets } from "../harness.ts";

export interface Caller {
  userId: string;
  email: string;
  workspaceId: string;
  /** Token with full access. */
  token: string;
}

export interface Reply {
  status: number;
  headers: Record<string, unknown>;
  /** JSON of the response; null if the body is not JSON. */
  json: unknown;
  text: string;
}

export interface World {
  app: App;
  routes: Routes;
  /** Runs the builds in the queue, because no job worker runs in these tests. */
  build(): Promise<void>;
  apps: Apps;
  functions: FunctionInstances;
  /** A user on the highest plan and tier. */
  owner: Caller;
  /** Another user on the highest plan and tier, without access to the owner's resources. */
  stranger: Caller;
  tokenWith(scopes: readonly Scope[]): Promise<string>;
  /** Listens on a socket as well, and returns its address. */
  listen(): Promise<string>;
  /** Sends a request. `path` includes its query; `token` is null for a request without a token. */
  call(
    method: string,
    path: string,
    options: { token: string | null; body?: unknown; headers?: Readonly<Record<string, string>> },
  ): Promise<Reply>;
  /** Sends the text as the body, unchanged. */
  callRaw(
    method: string,
    path: string,
    options: { token: string | null; payload?: string | Buffer; headers?: Readonly<Record<string, string>> },
  ): Promise<Reply>;
}

/**
 * Opens a world. With `agents`, which receives the server's own API, runs of agents are executed; otherwise they stay
 * queued.
 */
export async function openWorld({ agents }: { agents?: (api: OwnApi) => OwnApi } = {}): Promise<World> {
  const dataDir = mkdtempSync(join(tmpdir(), "kontor-contract-"));
  afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
  const config = loadConfig({
    env: {},
    dataDir,
    overrides: {
      runtime: "fake",
      allowFakeRuntime: "on",
      logLevel: "silent",
      rateLimits: "off",
      // Each case creates one or two sandboxes, which run no program.
      cpuOvercommit: "100",
      memoryOvercommit: "10",
      regions: "eu-1=Here,us-1=There",
      // No DNS server listens at this address, and no test needs an answer.
      dnsServers: "127.0.0.1:9",
      // No delivery is sent, because no job worker runs here.
      allowPrivateHosts: "127.0.0.0/8",
    },
  });
  const { db, pool } = await testDatabase();
  const clock = systemClock;
  const log = silentLog;
  const jobs = await openJobs({ db, pool, log, hostId: "contract", version: "test" });
  afterAll(() => jobs.stop(0));
  const directory = join(dataDir, "machines");
  const driver = new FakeDriver({ directory, services: { [protocol]: playInterpreter() } });
  const machines = await openMachines({ config, db, clock, log, driver });
  afterAll(() => machines.close());
  // Processes of a fake machine run on this host and would outlive the test.
  afterAll(async () => {
    for (const { id } of await driver.list()) await driver.remove(id);
  });
  const app: App = { config, db, jobs, machines, secrets: testSecrets(), clock, log };
  // Add-ons are not started, because this host may lack their programs.
  const owners = makeOwners(app, { launch: hostLaunch(db, dataDir) });
  const { builds, apps, functions, addons } = owners;
  const backups = new Backups(app, addons, openBlobs(config));
  await machines.start(app, machineOwners(app, owners));
  await apps.start();
  await functions.start();
  afterAll(() => functions.close());
  // No visitor of the apps comes from outside.
  apps.serveThrough({ drained: async () => {}, visit: async () => {} });
  afterAll(() => apps.close());
  const runs = new RunExecutor(app, { pauseMs: 5 });
  const routes = apiRoutes(app, { ...owners, backups, agentRuns: runs });
  const server = await createHttpServer(app, routes, {
    findActor: (credential) => findActor(app, credential),
    findActors: (credentials) => findActors(app, credentials),
    workspaceOf: (actor, target) => workspaceOf(db, actor, target),
    noteAccess: (note) => accessLogOf(app).note(note),
  });
  afterAll(() => accessLogOf(app).close());
  afterAll(() => server.close());
  if (agents) await runs.start(agents(ownApi(routes, server)));
  afterAll(() => runs.stop());

  const caller = async (): Promise<Caller> => {
    const { user, workspace } = await makePerson(db, {
      workspace: { plan: "team", sandbox_tier: "enterprise" },
    });
    const { plaintext } = await makeToken(db, user.id);
    return { userId: user.id, email: user.email, workspaceId: workspace.id, token: plaintext };
  };
  const callRaw: World["callRaw"] = async (method, path, { token, payload, headers }) => {
    const response = await server.fastify.inject({
      method: method as "GET",
      url: path,
      headers: {
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(payload === undefined ? {} : { "content-type": "application/json" }),
        ...headers,
      },
      ...(payload === undefined ? {} : { payload }),
    });
    const isJson = String(response.headers["content-type"]).startsWith("application/json");
    return {
      status: response.statusCode,
      headers: response.headers,
      json: isJson ? response.json() : null,
      text: response.payload,
    };
  };
  const owner = await caller();
  const tokens = new Map<string, string>();
  return {
    app,
    routes,
    build: () => builds.run(new AbortController().signal),
    apps,
    functions,
    owner,
    stranger: await caller(),
    tokenWith: async (scopes) => {
      const key = scopes.join(" ");
      // Each kind has a single token, because a plan limits tokens.
      const made = tokens.get(key) ?? (await makeToken(db, owner.userId, { scopes })).plaintext;
      tokens.set(key, made);
      return made;
    },
    call: (method, path, { body, ...rest }) =>
      callRaw(method, path, body === undefined ? rest : { ...rest, payload: JSON.stringify(body) }),
    callRaw,
    listen: async () => `http://127.0.0.1:${await server.listen({ host: "127.0.0.1", port: 0 })}`,
  };
}
