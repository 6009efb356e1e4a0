/** Header values of HTTP tools in the database, in responses and in updates. */
import { readFileSync } from "node:fs";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { sealClearHeaders } from "./headers.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const { db } = host.app;
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const value = "header-canary-0123456789";
let made = 0;

const tool = (name: string, headers?: Record<string, string>) => ({
  name,
  description: "",
  method: "GET",
  path: `/${name}`,
  parameters: { type: "object", properties: {} },
  ...(headers ? { headers } : {}),
});
const toolWith = (headers: Record<string, string>) => [expect.objectContaining({ headers })];

async function toolset(headers: Record<string, string>, key?: string): Promise<Json> {
  const body = {
    name: `set${(made += 1)}`,
    kind: "http",
    url: tools.url,
    http_tools: [tool("find", headers)],
  };
  const { status, json } = await owner.call(
    "POST",
    "/v1/agent-toolsets",
    body,
    key === undefined ? {} : { "idempotency-key": key },
  );
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function patch(id: string, body: object, expected = 200): Promise<Json> {
  const { status, json } = await owner.call("PATCH", `/v1/agent-toolsets/${id}`, body);
  expect(status, JSON.stringify(json)).toBe(expected);
  return json;
}

/** Calls the toolset's tool. Returns the headers of the tool's request and the text that the model gets. */
async function callTool(set: Json): Promise<{ headers: Json; result: string }> {
  const name = `agent-${(made += 1)}`;
  const body = { name, config: { ...config, toolsets: [{ toolset_id: set.id }] } };
  expect((await owner.post("/v1/agents", body)).status).toBe(201);
  tools.asked = [];
  // The tool server echoes the header in its response.
  tools.answer = (_, response) =>
    response.writeHead(200).end(`got ${String(tools.asked[0]?.headers["x-key"])}`);
  model.script([{ calls: [{ name: `${set.name}__find`, arguments: "{}" }] }, { text: ["Done."] }]);
  expect((await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" })).json.output).toBe("Done.");
  return { headers: tools.asked[0]!.headers, result: model.asked.at(-1).messages.at(-1).content };
}

async function isStoredInClear(): Promise<boolean> {
  const tables = ["agent_toolsets", "idempotency_keys", "agent_tool_calls", "agent_events", "activity"];
  const texts = await Promise.all(
    tables.map(async (table) => {
      const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(db);
      return JSON.stringify(rows);
    }),
  );
  return texts.some((text) => text.includes(value));
}

test("sends a header's value with each call, and never stores or returns it in plain text", async () => {
  const set = await toolset({ "X-Key": value }, "once");
  expect(set.http_tools).toEqual(toolWith({ "X-Key": "…6789" }));
  expect(await callTool(set)).toMatchObject({ headers: { "x-key": value }, result: "got [secret]" });
  const { json } = await owner.get("/v1/agent-toolsets");
  expect(JSON.stringify(json)).not.toContain(value);
  expect(await isStoredInClear()).toBe(false);
});

test("keeps a header's stored value when an update sends the hint or a mask of the value", async () => {
  const set = await toolset({ "X-Key": value, "X-Short": "short" });
  expect(set.http_tools).toEqual(toolWith({ "X-Key": "…6789", "X-Short": "…" }));
  await patch(set.id, { http_tools: set.http_tools });
  await patch(set.id, { http_tools: [tool("find", { "x-key": "********", "X-Short": "…" })] });
  expect((await callTool(set)).headers).toMatchObject({ "x-key": value, "x-short": "short" });
  await patch(set.id, { http_tools: [tool("find", { "x-key": "another-value-4321" })] });
  const { headers } = await callTool(set);
  expect(headers["x-key"]).toBe("another-value-4321");
  expect(headers["x-short"]).toBeUndefined();
});

test.each([["…0000"], ["********"], ["…"]])(
  "refuses the mask %s when no stored header value matches it",
  async (mask) => {
    const set = await toolset({ "X-Key": value });
    const body = { http_tools: [tool("other", { "X-Key": mask })] };
    const pointer = "/http_tools/0/headers/X-Key";
    expect(await patch(set.id, body, 400)).toMatchObject({ code: "invalid_request", pointer });
  },
);

test("drops header values when the toolset moves to another origin, unless the request sends new values", async () => {
  const elsewhere = "http://127.0.0.1:9/";
  for (const [change, headers] of [
    [{}, undefined],
    [{ http_tools: [tool("find", { "X-Key": "…6789" })] }, undefined],
    [{ http_tools: [tool("find", { "X-Key": "value-of-the-new-host" })] }, { "X-Key": "…host" }],
  ] as const) {
    const set = await toolset({ "X-Key": value });
    const kept = await patch(set.id, { url: `${tools.url}/deeper` });
    expect(kept.http_tools).toEqual(toolWith({ "X-Key": "…6789" }));
    const moved = await patch(set.id, { url: elsewhere, ...change });
    expect(moved.http_tools[0].headers).toEqual(headers);
    // A move back to the first origin does not restore the header values.
    const back = await patch(set.id, { url: tools.url });
    expect(back.http_tools[0].headers).toBeUndefined();
    expect((await callTool(set)).headers["x-key"]).toBeUndefined();
  }
});

test("encrypts header values that an earlier version stored in plain text, and encrypts them once", async () => {
  const set = await toolset({});
  const clear = [tool("find", { "X-Key": value, "X-Mask": "********" }), tool("plain")];
  await sql`update agent_toolsets set http_tools = ${JSON.stringify(clear)}::json where id = ${set.id}`.execute(
    db,
  );
  expect(await isStoredInClear()).toBe(true);
  await sealClearHeaders(host.app);
  await sealClearHeaders(host.app);
  expect(await isStoredInClear()).toBe(false);
  expect((await callTool(set)).headers).toMatchObject({ "x-key": value, "x-mask": "********" });
});

test("returns the current toolset to a repeated create whose stored response a migration removed", async () => {
  const key = `before-the-migration-${(made += 1)}`;
  const set = await toolset({ "X-Key": value }, key);
  await sql`update idempotency_keys set body = to_jsonb(${JSON.stringify({ ...set, canary: value })}::text)
    where key = ${key}`.execute(db);
  const file = new URL("../../../../migrations/0064_http_headers_sealed.sql", import.meta.url);
  const statements = readFileSync(file, "utf8").match(/^(update|delete)[^;]*;/gm) ?? [];
  expect(statements).toHaveLength(2);
  for (const statement of statements) await sql.raw(statement).execute(db);
  expect(await isStoredInClear()).toBe(false);
  const body = {
    name: set.name,
    kind: "http",
    url: tools.url,
    http_tools: [tool("find", { "X-Key": value })],
  };
  const again = await owner.call("POST", "/v1/agent-toolsets", body, { "idempotency-key": key });
  expect(again).toMatchObject({ status: 201, json: { id: set.id } });
});
