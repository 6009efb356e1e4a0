import { sql } from "kysely";
import { uiMessageChunkSchema } from "ai";
import { beforeEach, expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const secret = "tool-secret-0123456789";
let made = 0;

beforeEach(() => {
  tools.asked = [];
  tools.answer = undefined;
});

const find = {
  name: "find",
  description: "Finds a thing.",
  method: "GET",
  path: "/things/{id}",
  parameters: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
};
const make = {
  name: "make",
  description: "Makes a thing.",
  method: "POST",
  path: "/things",
  parameters: { type: "object", properties: { title: { type: "string" } }, required: ["title"] },
};

async function toolset(change: object = {}): Promise<Json> {
  made += 1;
  const body = {
    name: `set${made}`,
    kind: "http",
    url: tools.url,
    auth_secret: secret,
    http_tools: [find, make],
    ...change,
  };
  const { status, json } = await owner.post("/v1/agent-toolsets", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function agent(uses: object[], change: object = {}): Promise<string> {
  made += 1;
  const body = { name: `agent-${made}`, config: { ...config, toolsets: uses, ...change } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json.name as string;
}

const invoke = (name: string, body: object = {}) =>
  owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", ...body });
const call = (name: string, values: unknown) => ({ name, arguments: JSON.stringify(values) });
const run = async (id: string) => (await owner.get(`/v1/agents/runs/${id}`)).json;
const events = async (id: string, query = "") =>
  (
    await readFrames(`${host.baseUrl}/v1/agents/runs/${id}/stream${query}`, { token: owner.token })
  ).frames.map(({ data }) => data);

test("calls several tools at once and uses their results in the answer", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }]);
  const [finds, makes] = [`${set.name}__find`, `${set.name}__make`];
  model.script([
    { text: ["Looking."], calls: [call(finds, { id: "a" }), call(makes, { title: "B" })] },
    { text: ["Done."] },
  ]);
  const { json } = await invoke(name);
  expect(json).toMatchObject({ status: "completed", output: "Done." });
  expect(model.asked[0].tools.map((tool: Json) => tool.function)).toMatchObject([
    { name: finds, description: "Finds a thing.", parameters: find.parameters },
    { name: makes },
  ]);
  expect(model.asked[1].messages.slice(1).map(({ role, content }: Json) => [role, content])).toEqual([
    ["assistant", "Looking."],
    ["tool", '{"ok":true}'],
    ["tool", '{"ok":true}'],
  ]);
  const record = await run(json.run_id);
  expect(record).toMatchObject({
    steps: 2,
    tools_called: [
      { tool: finds, toolset_id: set.id, status: "completed" },
      { tool: makes, toolset_id: set.id, status: "completed" },
    ],
  });
  const asked = tools.asked.toSorted((a, b) => a.path.localeCompare(b.path));
  expect(asked.map(({ method, path, body }) => [method, path, body])).toEqual([
    ["POST", "/api/things", '{"title":"B"}'],
    ["GET", "/api/things/a", ""],
  ]);
  for (const { headers } of asked) {
    expect(headers.authorization).toBe(`Bearer ${secret}`);
    expect(record.tools_called.map(({ call_id }: Json) => call_id)).toContain(headers["idempotency-key"]);
  }
  const log = await events(json.run_id);
  expect(log.find(({ type }) => type === "tool.input")).toMatchObject({
    tool: finds,
    arguments: { id: "a" },
  });
  expect(log.filter(({ type }) => type === "tool.completed")).toHaveLength(2);
  expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
  const schema = uiMessageChunkSchema();
  for (const chunk of (await events(json.run_id, "?format=ui")).slice(0, -1))
    expect(await schema.validate!(chunk), JSON.stringify(chunk)).toMatchObject({ success: true });
});

test.each([
  ["nothing__here", "{}", "failed", "no such tool"],
  ["find", "{not json", "failed", "not a JSON object"],
  ["find", '{"id":7}', "failed", "do not fit"],
  ["find", '{"id":".."}', "failed", "must not be empty"],
  ["make", '{"title":"x"}', "denied", "may not be used"],
])("returns to the model the reason why a call is not made: %s %s", async (tool, args, status, words) => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id, tools: { make: { policy: "deny" } } }]);
  const asked = tool.includes("__") ? tool : `${set.name}__${tool}`;
  model.script([{ calls: [{ name: asked, arguments: args }] }, { text: ["Oh."] }]);
  const { json } = await invoke(name);
  expect(json.output).toBe("Oh.");
  expect(model.asked[0].tools.map((one: Json) => one.function.name)).toEqual([`${set.name}__find`]);
  expect(model.asked[1].messages.at(-1).content).toContain(words);
  expect((await run(json.run_id)).tools_called).toMatchObject([{ tool: asked, status }]);
  expect(tools.asked).toEqual([]);
});

test("completes the other calls when a call fails, hangs, floods its output or returns the secret", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }], { limits: { tool_timeout_seconds: 1 } });
  const ids = ["broken", "slow", "endless", "moved", "echo"];
  tools.answer = (path, response) => {
    if (path.endsWith("broken")) response.writeHead(500).end("oh no");
    else if (path.endsWith("endless")) response.writeHead(200).end("x".repeat(300_000));
    else if (path.endsWith("moved")) response.writeHead(302, { location: "http://127.0.0.1:1/" }).end();
    else if (path.endsWith("echo")) response.writeHead(200).end(`you sent ${secret}`);
  };
  model.script([{ calls: ids.map((id) => call(`${set.name}__find`, { id })) }, { text: ["Well."] }]);
  const { json } = await invoke(name);
  expect(json.output).toBe("Well.");
  const told = model.asked[1].messages.slice(-5).map(({ content }: Json) => content);
  expect(told[0]).toBe("HTTP 500: oh no");
  expect(told[1]).toContain("within 1 s");
  expect(told[2]).toContain("cut off");
  expect(told[3]).toBe("HTTP 302: redirects to http://127.0.0.1:1/, which is not followed. ");
  expect(told[4]).toBe("you sent [secret]");
  for (const table of ["agent_toolsets", "agent_tool_calls", "agent_events", "agent_messages", "activity"]) {
    const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(host.app.db);
    expect(JSON.stringify(rows)).not.toContain(secret);
  }
});

test("keeps the beginning and the end of a long response, and no part of a secret at the cut", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }]);
  const ids = ["long", "cuts", "huge"];
  // The secrets lie across the end of the first half and across the start of the last half.
  const half = 32 * 1024;
  const cuts = `${"a".repeat(half - 5)}${secret}${"b".repeat(100_000)}${secret}${"c".repeat(half - 5)}`;
  tools.answer = (path, response) => {
    response.writeHead(200);
    if (path.endsWith("long")) response.end(`begin${"x".repeat(300_000)}end`);
    else if (path.endsWith("cuts")) response.end(cuts);
    else response.end(`begin${"x".repeat(17 * 1024 ** 2)}end`);
  };
  model.script([{ calls: ids.map((id) => call(`${set.name}__find`, { id })) }, { text: ["Well."] }]);
  await invoke(name);
  const [long, atCuts, huge] = model.asked[1].messages.slice(-3).map(({ content }: Json) => content);
  expect(long).toMatch(/^beginx+\n\[cut off: 234472 bytes left out\]\nx+end$/);
  expect(atCuts).toMatch(/^a+\[secr?e?t?\]?[^]*\n\[cut off: \d+ bytes left out\]\n[^]*c+$/);
  for (let from = 0; from + 8 <= secret.length; from += 1)
    expect(atCuts).not.toContain(secret.slice(from, from + 8));
  expect(huge).toMatch(/^beginx+\n\[cut off: the rest left out\]$/);
});

test("does not start a queued call after the run's time limit", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }], { limits: { max_seconds: 1 } });
  tools.answer = () => {};
  const calls = Array.from({ length: 12 }, (_, n) => call(`${set.name}__make`, { title: `${n}` }));
  model.script([{ calls }]);
  const { json } = await invoke(name);
  expect(json.error_code).toBe("limit_time");
  // The step makes at most eight concurrent calls.
  expect((await run(json.run_id)).tools_called.length).toBeLessThanOrEqual(8);
});

test("continues a session whose last run ended between a call and the call's result", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }]);
  tools.answer = () => {};
  model.script([{ calls: [call(`${set.name}__find`, { id: "a" })] }, { text: ["Again."] }]);
  const { json } = await invoke(name, { wait_s: 0 });
  await expect.poll(() => tools.asked.length).toBe(1);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  const next = await invoke(name, { session_id: json.session_id });
  expect(next.json.output).toBe("Again.");
  expect(model.asked[1].messages.map(({ role }: Json) => role)).toEqual([
    "user",
    "assistant",
    "tool",
    "user",
  ]);
});

test("drops a toolset's secret on a move to another origin, and when the secret is set to an empty value", async () => {
  const set = await toolset({ auth_header_name: "X-Api-Key" });
  expect(set).toMatchObject({ secret_hint: "…6789", auth_header_name: "X-Api-Key" });
  const patch = async (body: object) =>
    (await owner.call("PATCH", `/v1/agent-toolsets/${set.id}`, body)).json;
  expect(await patch({ url: `${tools.url}/deeper` })).toMatchObject({ secret_hint: "…6789" });
  expect(await patch({ url: "http://127.0.0.1:9/" })).toMatchObject({ secret_hint: null });
  expect(await patch({ url: tools.url, auth_secret: "another-secret-9999" })).toMatchObject({
    secret_hint: "…9999",
  });
  expect(await patch({ auth_secret: "" })).toMatchObject({ secret_hint: null });
  const again = await patch({ ...set, tool_overrides: { find: { name: "look", description: "Looks." } } });
  expect(again.tools[0]).toMatchObject({ name: "look", description: "Looks." });
});

test.each([
  [{ url: "http://10.0.0.1/" }, "/url"],
  [{ http_tools: [{ ...find, parameters: { type: "string" } }] }, "/http_tools/0/parameters"],
  [{ http_tools: [{ ...find, path: "/{other}" }] }, "/http_tools/0/path"],
  [{ http_tools: [{ ...find, path: "/../x" }] }, "/http_tools/0/path"],
  [{ http_tools: [{ ...find, headers: { Host: "x" } }] }, "/http_tools/0/headers/Host"],
  [{ http_tools: [find, find] }, "/http_tools/1/name"],
  [{ auth_header_name: "Idempotency-Key" }, "/auth_header_name"],
  [{ name: "No" }, "/name"],
])("rejects an invalid toolset: %j", async (change, pointer) => {
  const body = { name: `bad${(made += 1)}`, kind: "http", url: tools.url, http_tools: [find], ...change };
  const { status, json } = await owner.post("/v1/agent-toolsets", body);
  expect([status, json]).toMatchObject([400, { pointer }]);
});

test("refuses to delete a toolset of a served version, and fails a run that requires a deleted toolset", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id, required: true }]);
  const path = `/v1/agent-toolsets/${set.id}`;
  expect(await owner.call("DELETE", path)).toMatchObject({
    status: 409,
    json: { code: "toolset_in_use", agents: [name] },
  });
  await owner.post(`/v1/agents/${name}/versions`, { config, promote: ["prod"] });
  expect((await owner.call("DELETE", path)).status).toBe(204);
  expect((await invoke(name, { qualifier: "1" })).json).toMatchObject({ error_code: "tool_unavailable" });
});

test.each([
  [[{ toolset_id: "", allow: ["nothing"] }], "/config/toolsets/0/allow/0"],
  [[{ toolset_id: "", tools: { nothing: { policy: "deny" } } }], "/config/toolsets/0/tools/nothing"],
] as const)("rejects a config with a tool that its toolset lacks: %j", async (uses, pointer) => {
  const set = await toolset();
  const toolsets = uses.map((use) => ({ ...use, toolset_id: set.id }));
  const { status, json } = await owner.post("/v1/agents", {
    name: "never",
    config: { ...config, toolsets },
  });
  expect([status, json]).toMatchObject([400, { pointer }]);
});

test.each([
  ["agent.call.began", 0, "completed", "unknown"],
  ["agent.call.answered", 1, "completed", "unknown"],
  ["agent.call.ended", 1, "completed", "completed"],
  ["agent.calls.told", 1, "completed", "completed"],
] as const)(
  "after a server is killed at %s, repeats only calls that are repeatable",
  async (point, before, reads, writes) => {
    const set = await toolset();
    const name = await agent([{ toolset_id: set.id }]);
    for (const [tool, values, expected] of [
      ["find", { id: "a" }, reads],
      ["make", { title: "B" }, writes],
    ] as const) {
      tools.asked = [];
      const mayGoOn = Promise.withResolvers<void>();
      const reached = Promise.withResolvers<void>();
      let isFirst = true;
      onKillPoint(async (at) => {
        if (at !== point || !isFirst) return;
        isFirst = false;
        reached.resolve();
        await mayGoOn.promise;
      });
      model.script([{ calls: [call(`${set.name}__${tool}`, values)] }, { text: ["Done."] }]);
      const { json } = await invoke(name, { wait_s: 0 });
      await reached.promise;
      expect(tools.asked).toHaveLength(before);
      // Another process with the same name, as after a restart, acquires the runs of the killed process.
      const next = new RunExecutor(host.app, { pauseMs: 5 });
      await next.start();
      await next.waitForOutcome(json.run_id, 20_000);
      mayGoOn.resolve();
      onKillPoint(undefined);
      await next.stop();
      const record = await run(json.run_id);
      expect(record).toMatchObject({ status: "completed", output: "Done.", attempts: 2 });
      expect(record.tools_called).toMatchObject([{ status: tool === "find" ? reads : writes }]);
      if (expected === "unknown") expect(tools.asked.length).toBeLessThanOrEqual(1);
      const results = (await events(json.run_id)).filter(({ type }) =>
        /^tool\.(completed|failed)$/.test(type),
      );
      expect(results).toHaveLength(1);
    }
  },
);
