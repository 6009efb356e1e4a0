/** Agent API for tests of this folder, over the real HTTP layer and a real database. Machines are optional. */
import { afterAll } from "vitest";
import { findActor, findActors } from "#accounts/find-actor.ts";
import type { Plan, Scope } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { ConfigKey } from "#config.ts";
import type { Connection } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { createHttpServer } from "#http/server.ts";
import { openJobs } from "#jobs/jobs.ts";
import type { Clock } from "#lib/clock.ts";
import { systemClock } from "#lib/clock.ts";
import type { SecretBox } from "#lib/secret-box.ts";
import { sandboxRoutes } from "#sandbox/api.ts";
import { makePerson, makeToken } from "../../../test/factories.ts";
import { silentLog, testConfig, testDatabase, testSecrets } from "../../../test/harness.ts";
import { agentRoutes, agentSites } from "../api.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- an answer's shape is what these tests are about
export type Json = any;

interface Reply {
  status: number;
  json: Json;
  headers: Headers;
}

export interface AgentHost {
  app: App;
  connection: Connection;
  /** Executor of runs. With `isIdle`, the executor is not started. */
  runs: RunExecutor;
  baseUrl: string;
  /** Creates a person with a full-access token. */
  person(options?: { plan?: Plan; suspended?: boolean }): Promise<Person>;
}

export interface Person {
  userId: string;
  workspaceId: string;
  token: string;
  tokenWith(scopes: readonly Scope[]): Promise<string>;
  call(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Reply>;
  get(path: string): Promise<Reply>;
  post(path: string, body?: unknown): Promise<Reply>;
}

export async function agentHost(
  options: {
    clock?: Clock;
    config?: Partial<Record<ConfigKey, string>>;
    secrets?: SecretBox;
    isIdle?: boolean;
    /** Function that creates the driver for machines. */
    machines?: (db: Db) => Promise<{ app: Pick<App, "machines"> }>;
  } = {},
): Promise<AgentHost> {
  const { db, pool, connection } = await testDatabase();
  const jobs = await openJobs({ db, pool, log: silentLog, hostId: "test", version: "test" });
  afterAll(() => jobs.stop(0));
  const box = await options.machines?.(db);
  const app = {
    get machines() {
      return box?.app.machines;
    },
    config: testConfig({ rateLimits: "off", allowPrivateHosts: "127.0.0.0/8", ...options.config }),
    db,
    jobs,
    secrets: options.secrets ?? testSecrets(),
    clock: options.clock ?? systemClock,
    log: silentLog,
    // The tested functions use only these members of App.
  } as unknown as App;
  const runs = new RunExecutor(app, { pauseMs: 5, gatherMs: 20 });
  if (!options.isIdle) await runs.start();
  afterAll(() => runs.stop());
  const server = await createHttpServer(
    app,
    { platform: [], sandbox: box ? sandboxRoutes(app) : [], agent: agentRoutes(app, runs) },
    {
      findActor: (credential) => findActor(app, credential),
      findActors: (credentials) => findActors(app, credentials),
      raw: agentSites(app),
    },
  );
  afterAll(() => server.close());
  const port = await server.listen({ host: "127.0.0.1", port: Number(options.config?.port ?? 0) });
  const baseUrl = `http://127.0.0.1:${port}`;
  return {
    app,
    connection,
    runs,
    baseUrl,
    person: async ({ plan = "team", suspended = false } = {}) => {
      const { user, workspace } = await makePerson(db, {
        workspace: { plan, sandbox_tier: "enterprise", suspended_at: suspended ? new Date() : null },
      });
      const { plaintext: token } = await makeToken(db, user.id);
      const call: Person["call"] = (method, path, body, headers = {}) =>
        send(`${baseUrl}${path}`, method, body, { authorization: `Bearer ${token}`, ...headers });
      return {
        userId: user.id,
        workspaceId: workspace.id,
        token,
        tokenWith: async (scopes) => (await makeToken(db, user.id, { scopes })).plaintext,
        call,
        get: (path) => call("GET", path),
        post: (path, body) => call("POST", path, body),
      };
    },
  };
}

async function send(
  url: string,
  method: string,
  body: unknown,
  headers: Record<string, string>,
): Promise<Reply> {
  const response = await fetch(url, {
    method,
    headers: { ...headers, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return {
    status: response.status,
    json: text === "" ? null : JSON.parse(text),
    headers: response.headers,
  };
}

/** Creates a credential for a model at `baseUrl`, and returns the smallest config that uses it. */
export async function modelConfig(person: Person, baseUrl = "http://127.0.0.1:9/v1"): Promise<Json> {
  const { json } = await person.post("/v1/model-credentials", {
    provider: "openai_compatible",
    name: "local",
    api_key: "a-key-of-the-model-0123",
    base_url: baseUrl,
  });
  return { model: { provider: "openai_compatible", id: "scripted", credential_id: json.id } };
}
