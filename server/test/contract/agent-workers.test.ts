/** Agents that act on the platform and on sandboxes, through the whole API and with real tokens. */
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { findSchemaFault } from "#agent/json-schema.ts";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { ownApi } from "#agent/workers/api.ts";
import { verbs } from "#agent/workers/verbs.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import { createHttpServer } from "#http/server.ts";
import { makeProject } from "../factories.ts";
import { openWorld } from "./world.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- an answer's shape is what these tests are about
type Json = any;

/** Every token that an agent used. */
const tokens = new Set<string>();
let api: OwnApi | undefined;
const world = await openWorld({
  agents: (own) => {
    api = own;
    return {
      ...own,
      send: (request, options) => {
        tokens.add(options.token);
        return own.send(request, options);
      },
    };
  },
});
const model = await startModelServer();
const { app, owner } = world;
let made = 0;

const call = async (method: string, path: string, body?: unknown, token = owner.token) => {
  const { status, json } = await world.call(method, path, { token, body });
  return { status, json: json as Json };
};

const credential = (
  await call("POST", "/v1/model-credentials", {
    provider: "openai_compatible",
    name: "local",
    api_key: "a-key-of-the-model",
    base_url: model.url,
  })
).json.id as string;
const config = (platform?: object, more: object = {}) => ({
  model: { provider: "openai_compatible", id: "scripted", credential_id: credential },
  ...(platform ? { platform } : {}),
  ...more,
});

async function agent(platform?: object, more: object = {}): Promise<Json> {
  const body = { name: `worker-${(made += 1)}`, config: config(platform, more) };
  const { status, json } = await call("POST", "/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

const asks = (name: string, values: object = {}) => ({
  calls: [{ name: `kontor__${name}`, arguments: JSON.stringify(values) }],
});
const invoke = async (name: string, body: object = {}): Promise<Json> =>
  (await call("POST", `/v1/agents/${name}/invoke`, { input: "Go.", ...body })).json;
/** Returns the tool results in the last request to the model. */
const toolResultsOf = (request: Json): string[] =>
  request.messages.filter(({ role }: Json) => role === "tool").map(({ content }: Json) => content);
const toolNamesOf = (request: Json): string[] =>
  (request.tools ?? []).map((tool: Json) => tool.function.name as string);
const runTokens = (runId: string) =>
  app.db.selectFrom("api_tokens").selectAll().where("run_id", "=", runId).execute();

const all = { scopes: ["platform:write", "sandboxes:write"], policy: "allow" };

test("every tool has an operation, and a schema that model providers and the validator accept", async () => {
  expect(api!.operations.map(({ name }) => name)).toEqual(
    Object.keys(verbs).map((name) => `kontor__${name}`),
  );
  for (const { name, parameters } of api!.operations) {
    expect(await findSchemaFault("a", parameters), name).toBeUndefined();
    expect(name).toMatch(/^[A-Za-z0-9_-]{1,64}$/);
    expect(JSON.stringify(parameters)).not.toMatch(/"(follow|stream|workspace|git_token)"/);
  }
});

test("an agent creates a project in its own account, and the audit log names the agent", async () => {
  const { name, worker_id } = await agent(all);
  model.script([asks("create_project", { name: `by-agent-${(made += 1)}` }), asks("list_projects"), {}]);
  const run = await invoke(name);
  expect(run.status).toBe("completed");
  const [created] = toolResultsOf(model.asked[1]);
  const project = JSON.parse(created!);
  expect((await call("GET", `/api/v1/projects/${project.id}`)).json.name).toBe(project.name);
  expect(toolResultsOf(model.asked[2])[1]).toContain(project.id);
  const { json } = await call("GET", `/api/v1/activity?actor=${worker_id}`);
  expect(json.items[0]).toMatchObject({
    action: "project.created",
    actor: { kind: "worker", id: worker_id, label: name },
    target: { id: project.id },
  });
  // The model never gets a secret that the API shows only once. A change has the id of its call.
  expect(project.webhook).toBe("[secret]");
  const { tools_called } = (await call("GET", `/v1/agents/runs/${run.run_id}`)).json;
  expect(tools_called).toMatchObject([
    { tool: "kontor__create_project", toolset_id: null, status: "completed" },
    { tool: "kontor__list_projects", status: "completed" },
  ]);
  const keys = await app.db
    .selectFrom("idempotency_keys")
    .select(["route"])
    .where("key", "=", tools_called[0].call_id)
    .execute();
  expect(keys).toEqual([{ route: "createProject" }]);
  const { items } = (await call("GET", "/api/v1/workspace")).json.workers;
  expect(items.find((one: Json) => one.worker_id === worker_id)).toMatchObject({
    name,
    status: "idle",
    last_run: { run_id: run.run_id, status: "completed" },
  });
});

test("an agent has only the tools of its scopes, and calls to guessed tools are refused", async () => {
  const reader = await agent({ scopes: ["platform:read"] });
  model.script([asks("create_project", { name: "never-made" }), {}]);
  await invoke(reader.name);
  expect(toolNamesOf(model.asked[0])).toContain("kontor__list_projects");
  expect(toolNamesOf(model.asked[0]).filter((name) => /deploy$|create|sandbox/.test(name))).toEqual([]);
  expect(toolResultsOf(model.asked[1])).toEqual(["There is no such tool."]);
  expect(
    (await call("GET", "/api/v1/projects?limit=100")).json.items.map((one: Json) => one.name),
  ).not.toContain("never-made");
  const denied = await agent({ scopes: ["platform:write"], policy: "deny" });
  model.script([{}]);
  await invoke(denied.name);
  expect(toolNamesOf(model.asked[0])).toEqual([]);
  const { name } = await agent();
  model.script([{}]);
  await invoke(name);
  expect(toolNamesOf(model.asked[0])).toEqual([]);
});

test("an agent gets 404 for resources of another account", async () => {
  const { name } = await agent(all);
  const { id } = await makeProject(app.db, world.stranger.workspaceId);
  model.script([
    asks("get_project", { project_id: id }),
    asks("update_project", { project_id: id, port: 1 }),
    {},
  ]);
  await invoke(name);
  const [read, change] = toolResultsOf(model.asked[2]);
  expect(read).toMatch(/^HTTP 404: .*"code":"project_not_found"/);
  expect(change).toMatch(/^HTTP 404: /);
});

test("returns invalid tool input to the model as an error, and sends no request to another path", async () => {
  const { name } = await agent(all);
  model.script([
    asks("get_project", { project_id: "../activity" }),
    asks("get_sandbox", { id: ".." }),
    asks("list_projects", { limit: 1000 }),
    asks("terminate_sandbox", { id: "sbx_none?x=1" }),
    {},
  ]);
  await invoke(name);
  const answers = toolResultsOf(model.asked[4]);
  expect(answers.slice(0, 3)).toEqual([
    expect.stringContaining("do not fit"),
    "id must not be empty, . or .. because it is a part of the path",
    expect.stringContaining("do not fit"),
  ]);
  expect(answers[3]).toMatch(/^HTTP 404: .*sandbox_not_found/);
});

test("an agent runs commands in a sandbox that it created, and receives long output truncated", async () => {
  const { name } = await agent(all);
  model.script(({ messages }: Json) => {
    const results = messages.filter(({ role }: Json) => role === "tool");
    const id = results[0] && JSON.parse(results[0].content).id;
    const command = "head -c 100000 /dev/zero | tr '\\0' a";
    return [
      asks("create_sandbox", { template: "debian-12", preview_auth: true }),
      asks("exec_in_sandbox", { id, command, cwd: "/" }),
      asks("terminate_sandbox", { id }),
      {},
    ][results.length]!;
  });
  expect((await invoke(name)).status).toBe("completed");
  const [created, executed, ended] = toolResultsOf(model.asked[3]);
  expect(JSON.parse(created!)).toMatchObject({ status: "running", preview_auth_token: "[secret]" });
  expect(executed).toMatch(/^\{"stdout":"a+\n\[cut off after 65536 bytes\]$/);
  expect(JSON.parse(ended!).status).toBe("terminated");
});

test("binds a run's token to the account and the granted scopes, and revokes it with the run", async () => {
  const { name, worker_id } = await agent(all);
  let goOn = () => {};
  const until = new Promise<void>((resolve) => (goOn = resolve));
  tokens.clear();
  model.script([asks("list_projects"), { until, text: ["done"] }]);
  const { run_id } = await invoke(name, { wait_s: 0 });
  while (tokens.size === 0 || model.asked.length < 2) await sleep(10);
  const [token] = tokens;
  expect(await runTokens(run_id)).toMatchObject([
    {
      class: "agent",
      worker_id,
      workspace_id: owner.workspaceId,
      user_id: owner.userId,
      scopes: all.scopes,
      revoked_at: null,
      expires_at: expect.any(Date),
    },
  ]);
  expect((await call("GET", "/api/v1/projects", undefined, token)).status).toBe(200);
  expect((await call("GET", "/api/v1/api-tokens", undefined, token)).json.code).toBe("agent_token_refused");
  expect((await call("GET", "/v1/agents", undefined, token)).json.code).toBe("missing_scope");
  expect((await call("GET", "/api/v1/api-tokens")).json.map((one: Json) => one.class)).not.toContain("agent");
  goOn();
  while ((await call("GET", `/v1/agents/runs/${run_id}`)).json.finished_at === null) await sleep(10);
  expect(await runTokens(run_id)).toEqual([]);
  await expect.poll(async () => (await call("GET", "/api/v1/projects", undefined, token)).status).toBe(401);
});

test("revokes the token at once when a run is cancelled", async () => {
  const { name } = await agent(all);
  tokens.clear();
  model.script([asks("list_projects"), { until: new Promise(() => {}) }]);
  const { run_id } = await invoke(name, { wait_s: 0 });
  while (tokens.size === 0 || model.asked.length < 2) await sleep(10);
  expect(await runTokens(run_id)).toHaveLength(1);
  await call("POST", `/v1/agents/runs/${run_id}/cancel`);
  expect(await runTokens(run_id)).toEqual([]);
  const [token] = tokens;
  await expect.poll(async () => (await call("GET", "/api/v1/projects", undefined, token)).status).toBe(401);
});

test("revokes the run's previous token when another process takes over the run", async () => {
  const { name } = await agent(all);
  tokens.clear();
  model.script([asks("list_projects"), { until: new Promise(() => {}) }]);
  const { run_id } = await invoke(name, { wait_s: 0 });
  while (tokens.size === 0 || model.asked.length < 2) await sleep(10);
  const [token] = tokens;
  model.script([{ text: ["Done."] }]);
  const next = new RunExecutor(app, { pauseMs: 5 });
  await next.start(api);
  try {
    await next.waitForOutcome(run_id, 10_000);
    expect((await call("GET", `/v1/agents/runs/${run_id}`)).json).toMatchObject({
      status: "completed",
      attempts: 2,
    });
    expect(await runTokens(run_id)).toEqual([]);
    await expect.poll(async () => (await call("GET", "/api/v1/projects", undefined, token)).status).toBe(401);
  } finally {
    await next.stop();
  }
});

test("rejects a run's request to the platform API with the reason of the abort when the server stops", async () => {
  const server = await createHttpServer(
    app,
    { platform: [], sandbox: [], agent: [] },
    { findActor: async () => undefined },
  );
  const ended = ownApi({ platform: [], sandbox: [], agent: [] }, server);
  await server.close();
  const stop = new AbortController();
  const request = { method: "GET", path: "/api/v1/projects", body: undefined } as const;
  const sent = ended.send(request, { token: "svc_none", headers: {}, signal: stop.signal });
  setImmediate(() => stop.abort(new Error("it goes on elsewhere")));
  await expect(sent).rejects.toThrow("it goes on elsewhere");
});

test("asks a person before every change by default, and keeps no token of a run that waits", async () => {
  const { name } = await agent({ scopes: all.scopes });
  const values = { name: `asked-for-${(made += 1)}` };
  model.script([asks("list_projects"), asks("create_project", values), {}]);
  const { run_id, status, approval } = await invoke(name);
  expect([status, approval]).toMatchObject([
    "pending_approval",
    { tool: "kontor__create_project", arguments: values },
  ]);
  expect(await runTokens(run_id)).toEqual([]);
  const path = `/v1/agents/runs/${run_id}/approvals/${approval.request_id}`;
  expect((await call("POST", path, { decision: "approve" })).status).toBe(200);
  while ((await call("GET", `/v1/agents/runs/${run_id}`)).json.finished_at === null) await sleep(10);
  const { items } = (await call("GET", "/api/v1/projects?limit=100")).json;
  expect(items.map((one: Json) => one.name)).toContain(values.name);
});

test("refuses to give an agent scopes that its creator lacks", async () => {
  const { name } = await agent();
  const token = await world.tokenWith(["agents:write", "platform:read"]);
  const wide = { config: config({ scopes: ["platform:read", "platform:write"], policy: "allow" }) };
  const refused = {
    status: 403,
    json: { code: "missing_scope", scope: "platform:write", pointer: "/config/platform/scopes/1" },
  };
  expect(await call("POST", `/v1/agents/${name}/versions`, wide, token)).toMatchObject(refused);
  expect(await call("POST", "/v1/agents", { name: "too-wide", ...wide }, token)).toMatchObject(refused);
  const narrow = { config: config({ scopes: ["platform:read"] }) };
  expect((await call("POST", `/v1/agents/${name}/versions`, narrow, token)).status).toBe(201);
});

test("stores a run's token in no table, and does not send the token to the model", async () => {
  const { name } = await agent(all);
  tokens.clear();
  model.script([asks("list_projects"), asks("list_activity"), {}]);
  const { run_id } = await invoke(name);
  const [token] = tokens;
  expect(token).toMatch(/^svc_/);
  const tables = [
    "agent_events",
    "agent_tool_calls",
    "agent_runs",
    "api_tokens",
    "activity",
    "idempotency_keys",
  ] as const;
  const kept = await Promise.all(tables.map((table) => app.db.selectFrom(table).selectAll().execute()));
  const messages = await app.db.selectFrom("agent_messages").selectAll().execute();
  const text = JSON.stringify([kept, messages, model.asked]);
  expect(text).toContain(run_id);
  expect(text).not.toContain(token);
});
