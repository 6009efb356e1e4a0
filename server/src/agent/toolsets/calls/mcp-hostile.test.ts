/** Toolsets of MCP servers that are unreachable, broken, unusual or hostile. */
import { sql } from "kysely";
import { afterEach, expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";

const model = await startModelServer();
const server = await startMcpServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const secret = "mcp-secret-0123456789";
const find = {
  name: "find",
  description: "Finds.",
  inputSchema: { type: "object", properties: { id: { type: "string" } } },
};
let made = 0;

const reset = () => {
  server.asked = [];
  server.tools = [find];
  server.before = undefined;
  server.generation = "2025-11-25";
  server.call = () => ({ content: [{ type: "text", text: "Done." }] });
};
reset();
afterEach(reset);

async function toolset(change: object = {}): Promise<Json> {
  const body = { name: `server${(made += 1)}`, kind: "mcp", url: server.url, ...change };
  const { status, json } = await owner.post("/v1/agent-toolsets", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function agent(uses: object[], change: object = {}): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const { status, json } = await owner.post("/v1/agents", {
    name,
    config: { ...config, toolsets: uses, ...change },
  });
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

/** Makes one call of the tool, and returns the result that the model got. */
async function callTool(name: string, tool: string, values: object = {}): Promise<string> {
  model.script([{ calls: [{ name: tool, arguments: JSON.stringify(values) }] }, { text: ["Done."] }]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  expect(json).toMatchObject({ status: "completed", output: "Done." });
  return model.asked[1].messages.at(-1).content;
}

const findToolset = async (id: string) =>
  (await owner.get("/v1/agent-toolsets")).json.items.find((one: Json) => one.id === id);
const refresh = async (id: string) => (await owner.post(`/v1/agent-toolsets/${id}/refresh`)).json;

test.each(["2025-11-25", "2026-07-28"] as const)(
  "lists and calls the tools of a server of %s over one connection",
  async (generation) => {
    server.generation = generation;
    server.call = ({ arguments: values }) => ({
      content: [
        { type: "text", text: JSON.stringify(values) },
        { type: "text", text: "and more" },
      ],
      structuredContent: { kept: 1 },
    });
    const set = await toolset({ auth_secret: secret });
    expect(set).toMatchObject({ status: "ready", auth_type: "header", tools: [{ name: "find" }] });
    server.asked = [];
    const name = await agent([{ toolset_id: set.id }]);
    expect(await callTool(name, `${set.name}__find`, { id: "a" })).toBe(
      '{"id":"a"}\n\nand more\n\n{"kept":1}',
    );
    await callTool(name, `${set.name}__find`);
    const opens =
      generation === "2025-11-25"
        ? ["server/discover", "initialize", "notifications/initialized"]
        : ["server/discover"];
    expect(server.methods()).toEqual([...opens, "tools/call", "tools/call"]);
    for (const { headers } of server.asked) expect(headers.authorization).toBe(`Bearer ${secret}`);
  },
);

test("creates a toolset whose server is down, lists its tools once the server starts, and fails calls when it stops", async () => {
  const away = await startMcpServer();
  away.tools = [find];
  await away.stop();
  const set = await toolset({ url: away.url });
  expect(set).toMatchObject({ status: "unreachable", tools: [], last_refreshed_at: null });
  expect(set.last_error).toContain("ECONNREFUSED");
  const name = await agent([{ toolset_id: set.id, tools: { find: { policy: "allow" } } }]);
  expect(await callTool(name, `${set.name}__find`)).toContain("no such tool");
  await away.start();
  expect(await refresh(set.id)).toMatchObject({
    status: "ready",
    last_error: null,
    tools: [{ name: "find" }],
  });
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
  await away.stop();
  expect(await callTool(name, `${set.name}__find`)).toContain("can't be reached");
  expect(await refresh(set.id)).toMatchObject({ status: "unreachable", tools: [{ name: "find" }] });
  const needing = await agent([{ toolset_id: set.id, required: true }]);
  const { json } = await owner.post(`/v1/agents/${needing}/invoke`, { input: "Hi" });
  expect(json).toMatchObject({ status: "failed", error_code: "tool_unavailable" });
});

test("repeats a call once when a restarted server does not know the MCP session", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }]);
  let session = "first";
  server.before = ({ body }, response) => {
    if (body?.method !== "initialize") return false;
    response.setHeader("mcp-session-id", session);
    return false;
  };
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
  session = "second";
  const named = server.before;
  server.before = (asked, response) => {
    if (asked.method === "POST" && asked.headers["mcp-session-id"] === "first") {
      response.writeHead(404).end();
      return true;
    }
    return named(asked, response);
  };
  server.asked = [];
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
  expect(server.methods().filter((method) => method === "tools/call")).toHaveLength(2);
});

test("makes tools with unusual names callable, and leaves out unusable tools", async () => {
  const deep: Json = {};
  let level = deep;
  for (let depth = 0; depth < 80; depth += 1) level = level.properties = { x: {} };
  server.tools = [
    { ...find, name: "files.read" },
    { ...find, name: "files/read" },
    { ...find, name: "x".repeat(150), description: "y".repeat(10_000) },
    { ...find, name: "n".repeat(500) },
    { ...find, name: "nul\u0000byte\ud800" },
    { ...find, name: "regexp", inputSchema: { type: "object", properties: { a: { pattern: "(" } } } },
    { ...find, name: "deep", inputSchema: { type: "object", ...deep } },
    { ...find, name: "files.read" },
  ];
  const set = await toolset();
  const names = set.tools.map(({ name }: Json) => name);
  expect(new Set(names).size).toBe(names.length);
  for (const name of names) expect(`${set.name}__${name}`).toMatch(/^[A-Za-z0-9_-]{1,64}$/);
  expect(set.tools.map((tool: Json) => tool.original_name)).toContain("files/read");
  expect(set.tools.map((tool: Json) => tool.original_name)).not.toContain("deep");
  expect(set.last_error).toContain("left out");
  expect(Math.max(...set.tools.map((tool: Json) => tool.description.length))).toBeLessThanOrEqual(4000);
  server.call = ({ name }) => ({ content: [{ type: "text", text: name }] });
  const read = set.tools.find((tool: Json) => tool.original_name === "files/read").name;
  const name = await agent([{ toolset_id: set.id, allow: ["files/read"] }]);
  expect(await callTool(name, `${set.name}__${read}`)).toBe("files/read");
  expect(model.asked[0].tools).toHaveLength(1);
});

test("applies overrides that rename, describe and deny tools by their original names", async () => {
  server.tools = [find, { ...find, name: "drop" }];
  const set = await toolset({
    tool_overrides: { find: { name: "look", description: "Looks." }, drop: { policy: "deny" } },
  });
  const name = await agent([{ toolset_id: set.id }]);
  expect(await callTool(name, `${set.name}__drop`)).toContain("may not be used");
  expect(model.asked[0].tools.map((one: Json) => one.function)).toMatchObject([
    { name: `${set.name}__look`, description: "Looks." },
  ]);
  const wrong = { name: "wrong", config: { ...config, toolsets: [{ toolset_id: set.id, allow: ["look"] }] } };
  expect((await owner.post("/v1/agents", wrong)).json).toMatchObject({
    pointer: "/config/toolsets/0/allow/0",
  });
});

test("limits the size of results, describes content other than text, and removes the secret", async () => {
  const set = await toolset({ auth_secret: secret, auth_header_name: "X-Key" });
  const name = await agent([{ toolset_id: set.id }], { limits: { tool_timeout_seconds: 1 } });
  const tool = `${set.name}__find`;
  server.call = () => ({ content: [{ type: "text", text: "x".repeat(300_000) }] });
  const long = await callTool(name, tool);
  expect(long.length).toBeLessThan(66_000);
  expect(long).toContain("cut off");
  server.call = () => ({ content: [{ type: "text", text: `you sent ${secret}` }], isError: true });
  expect(await callTool(name, tool)).toBe("you sent [secret]");
  server.call = () => ({ error: { code: -32000, message: `no: ${secret}` } });
  expect(await callTool(name, tool)).toBe("The server refused: no: [secret]");
  server.call = () => ({ content: [{ type: "resource", resource: { uri: "a://b", blob: "AAAA" } }] });
  expect(await callTool(name, tool)).toBe("[resource a://b of type unknown, 3 bytes, left out]");
  server.call = () => ({ content: [] });
  expect(await callTool(name, tool)).toBe("[the tool returned nothing]");
  server.call = () => undefined;
  expect(await callTool(name, tool)).toContain("within 1 s");
  server.call = () => ({
    content: [{ type: "image", data: "A".repeat(9 * 1024 ** 2), mimeType: "image/png" }],
  });
  expect(await callTool(name, tool)).toContain("too long");
  for (const table of ["agent_toolsets", "agent_tool_calls", "agent_events", "agent_messages", "activity"]) {
    const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(host.app.db);
    expect(JSON.stringify(rows)).not.toContain(secret);
  }
});

test("removes the secret from a list of tools that contains it", async () => {
  const described = { ...find, description: `Send Bearer ${secret}` };
  const schema = { type: "object", properties: { [secret]: { type: "string", enum: [secret, "b"] } } };
  server.tools = [
    described,
    { ...find, name: "other", inputSchema: schema },
    { ...find, name: secret.repeat(20) },
  ];
  const set = await toolset({ auth_secret: secret });
  expect(set.status).toBe("ready");
  expect(set.tools[0].description).toBe("Send Bearer [secret]");
  const { rows } = await sql`select t::text as row from agent_toolsets as t`.execute(host.app.db);
  expect(JSON.stringify([set, rows])).not.toContain(secret);
});

test("fails a run before its step while a required server is down, and runs again once the server is up", async () => {
  const away = await startMcpServer();
  away.tools = [find];
  const set = await toolset({ url: away.url });
  const name = await agent([{ toolset_id: set.id, required: true }]);
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
  await away.stop();
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  expect(json).toMatchObject({ status: "failed", error_code: "tool_unavailable" });
  await away.start();
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
});

test.each([
  ["an endless list", "pagination did not terminate", { tools: [find], nextCursor: "again" }],
  ["a number", "", { tools: 7 }],
])("rejects %s as a list of tools", async (_, words, result) => {
  let page = 0;
  server.before = ({ body }, response) => {
    if (body?.method !== "tools/list") return false;
    const cursor = "nextCursor" in result ? { nextCursor: `p${(page += 1)}` } : {};
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: body.id, result: { ...result, ...cursor } }));
    return true;
  };
  const set = await toolset();
  expect(set).toMatchObject({ status: "unreachable", tools: [] });
  expect(set.last_error).toContain(words);
});

test("reports a server that requires credentials, and does not follow the server's redirects", async () => {
  server.before = (_, response) => {
    response.writeHead(401, { "www-authenticate": "Bearer" }).end();
    return true;
  };
  expect(await toolset()).toMatchObject({ status: "auth_required", tools: [] });
  server.before = (_, response) => {
    response.writeHead(307, { location: "http://10.0.0.1/mcp" }).end();
    return true;
  };
  expect(await toolset({ auth_secret: secret })).toMatchObject({ status: "unreachable", tools: [] });
});

test("drops the cached list of tools when the address changes, and reads the list of the new server", async () => {
  const other = await startMcpServer();
  other.tools = [{ ...find, name: "other" }];
  const set = await toolset({ auth_secret: secret });
  const patched = (await owner.call("PATCH", `/v1/agent-toolsets/${set.id}`, { url: other.url })).json;
  expect(patched).toMatchObject({ status: "ready", secret_hint: null, tools: [{ name: "other" }] });
  for (const { headers } of other.asked) expect(headers.authorization).toBeUndefined();
  const gone = (await owner.call("PATCH", `/v1/agent-toolsets/${set.id}`, { url: "http://127.0.0.1:9/mcp" }))
    .json;
  expect(gone).toMatchObject({ status: "unreachable", tools: [], last_refreshed_at: null });
});

test("reads the list of tools again when the server no longer knows a tool", async () => {
  const set = await toolset();
  const name = await agent([{ toolset_id: set.id }]);
  server.tools = [{ ...find, name: "found" }];
  server.call = () => ({ error: { code: -32602, message: "Unknown tool: find" } });
  expect(await callTool(name, `${set.name}__find`)).toContain("Unknown tool");
  await expect.poll(async () => (await findToolset(set.id)).tools[0].name).toBe("found");
});

test.each([
  [
    {
      http_tools: [{ name: "a", description: "", method: "GET", path: "/", parameters: { type: "object" } }],
    },
    "/http_tools",
  ],
  [{ kind: "http" }, "/http_tools"],
  [{ url: undefined }, "/url"],
  [{ url: "http://10.0.0.1/mcp" }, "/url"],
  [{ catalog_slug: "nobody" }, "/catalog_slug"],
  [{ catalog_slug: "linear" }, "/url"],
  [{ catalog_slug: "linear", url: undefined, kind: "http" }, "/kind"],
  [{ catalog_slug: "github", url: undefined }, "/oauth_client_id"],
])("rejects an invalid toolset of an MCP server: %j", async (change, pointer) => {
  const body = { name: `bad${(made += 1)}`, kind: "mcp", url: server.url, ...change };
  const { status, json } = await owner.post("/v1/agent-toolsets", body);
  expect([status, json]).toMatchObject([400, { pointer }]);
});

test("refuses to refresh an http toolset or a toolset of another account", async () => {
  const set = await toolset({ kind: "http", http_tools: [] });
  expect(await refresh(set.id)).toMatchObject({ code: "toolset_not_refreshable" });
  const stranger = await host.person();
  expect((await stranger.post(`/v1/agent-toolsets/${set.id}/refresh`)).json.code).toBe("toolset_not_found");
});

test("refuses either the deletion of a toolset or a version that uses it, when both happen at once", async () => {
  for (let round = 0; round < 5; round += 1) {
    const set = await toolset({ kind: "http", http_tools: [] });
    const name = `racing-${(made += 1)}`;
    const body = { name, config: { ...config, toolsets: [{ toolset_id: set.id }] } };
    const [published, removed] = await Promise.all([
      owner.post("/v1/agents", body),
      owner.call("DELETE", `/v1/agent-toolsets/${set.id}`),
    ]);
    expect([`201 409`, `400 204`]).toContain(`${published.status} ${removed.status}`);
  }
});
