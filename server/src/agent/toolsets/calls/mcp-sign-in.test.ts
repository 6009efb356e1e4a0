/** Toolsets of MCP servers with sign-in. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { freePort } from "#agent/testing/free-port.ts";
import { startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startSignInServer, TestBrowser } from "#agent/testing/sign-in-server.ts";

const port = await freePort();
const model = await startModelServer();
const host = await agentHost({ config: { port: String(port) } });
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const door = await startSignInServer({
  redirectUri: `http://127.0.0.1:${port}/connect/callback`,
  isRegistering: true,
});
const server = await startMcpServer();
const whoami = { name: "whoami", inputSchema: { type: "object" } };
server.tools = [whoami];
const metadata = "/.well-known/oauth-protected-resource/mcp";
const challenge = `Bearer resource_metadata="${new URL(metadata, server.url).href}"`;
/** Access tokens that the server accepts. */
const tokens = new Set<string>();
const revoked = new Set<string>();
/** Scope that a tool requires in addition, by tool name. `tools/list` counts as a tool. */
const needs = new Map<string, string>();
server.before = async ({ path, headers, body }, response) => {
  if (path === metadata) {
    const said = {
      resource: server.url,
      authorization_servers: [door.issuer],
      scopes_supported: ["tools:use"],
    };
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(said));
    return true;
  }
  const token = /^Bearer (.+)$/.exec(headers.authorization ?? "")?.[1];
  if (token === undefined || revoked.has(token)) {
    response.writeHead(401, { "www-authenticate": challenge }).end();
    return true;
  }
  tokens.add(token);
  const need = needs.get(body?.method === "tools/call" ? body.params.name : body?.method);
  if (need === undefined || (await door.scopeOf(token))?.split(" ").includes(need)) return false;
  response.writeHead(403, {
    "www-authenticate": `Bearer error="insufficient_scope", scope="${need}", error_description="No."`,
  });
  response.end();
  return true;
};

async function runOf(name: string, tools: readonly string[]): Promise<{ log: Json[]; told: string[] }> {
  model.script([...tools.map((tool) => ({ calls: [{ name: tool, arguments: "{}" }] })), { text: ["Done."] }]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", end_user_id: "ada" });
  expect(json).toMatchObject({ status: "completed", output: "Done." });
  const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream`;
  const { frames } = await readFrames(url, { token: owner.token });
  const said = model.asked.at(-1).messages.filter(({ role }: Json) => role === "tool");
  return { log: frames.map(({ data }) => data), told: said.map(({ content }: Json) => content) };
}

test("requires a sign-in for a tool, then calls the tool for the end user, even after a token refresh", async () => {
  const { json: set } = await owner.post("/v1/agent-toolsets", {
    name: "theirs",
    kind: "mcp",
    url: server.url,
    auth_type: "oauth",
    oauth_per_end_user: true,
  });
  expect(set).toMatchObject({ status: "auth_required", tools: [] });
  const made = await owner.post("/v1/agents", {
    name: "caller",
    config: { ...config, toolsets: [{ toolset_id: set.id, required: true }] },
  });
  expect(made.status).toBe(201);

  const first = await runOf("caller", ["theirs__sign_in"]);
  expect(first.told[0]).toContain("has to sign in to theirs");
  const asked = first.log.find(({ type }) => type === "connection.auth_required");
  expect(asked).toMatchObject({ toolset_id: set.id, end_user_id: "ada", expires_in: expect.any(Number) });
  expect(JSON.stringify(model.asked)).not.toContain("/connect/");
  const page = await new TestBrowser().signIn(asked.authorize_url, "ada");
  expect([page.status, page.text]).toEqual([200, expect.stringContaining("You are connected")]);

  const second = await runOf("caller", ["theirs__sign_in", "theirs__whoami"]);
  expect(second.told).toEqual([expect.stringContaining("theirs__whoami"), "Done."]);

  const before = tokens.size;
  for (const token of tokens) revoked.add(token);
  const third = await runOf("caller", ["theirs__whoami"]);
  expect(third.told).toEqual(["Done."]);
  expect(tokens.size).toBeGreaterThan(before);

  // A new account opens a new connection, because a server may keep data of an account in a session.
  const countConnections = () => server.methods().filter((method) => method === "initialize").length;
  const kept = countConnections();
  await runOf("caller", ["theirs__whoami"]);
  expect(countConnections()).toBe(kept);
  const { json: link } = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, { end_user_id: "ada" });
  await new TestBrowser().signIn(link.authorize_url, "ada-elsewhere");
  await runOf("caller", ["theirs__whoami"]);
  expect(countConnections()).toBe(kept + 1);

  for (const table of ["agent_toolsets", "agent_tool_calls", "agent_events", "agent_messages", "activity"]) {
    const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(host.app.db);
    for (const token of tokens) expect(JSON.stringify(rows)).not.toContain(token);
  }
});

/** Creates a toolset with a sign-in per end user, and connects ada. */
async function signedIn(name: string): Promise<Json> {
  const body = { name, kind: "mcp", url: server.url, auth_type: "oauth", oauth_per_end_user: true };
  const { json: set } = await owner.post("/v1/agent-toolsets", body);
  const agent = { name, config: { ...config, toolsets: [{ toolset_id: set.id }] } };
  expect((await owner.post("/v1/agents", agent)).status).toBe(201);
  const { json } = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, { end_user_id: "ada" });
  expect((await new TestBrowser().signIn(json.authorize_url, "ada")).text).toContain("You are connected");
  return set;
}
const askedIn = (log: Json[]) => log.filter(({ type }) => type === "connection.auth_required");
const scopesOf = async (id: string) =>
  (await owner.get(`/v1/agent-toolsets/${id}/connections`)).json.items.map(({ scope }: Json) => scope);

test("requires a sign-in for the granted and the missing scopes, and meanwhile makes calls that need no more scopes", async () => {
  server.tools = [whoami, { ...whoami, name: "write" }];
  needs.set("write", "tools:write");
  const set = await signedIn("wider");
  await runOf("wider", ["wider__sign_in"]);
  expect(await scopesOf(set.id)).toEqual(["tools:use"]);
  const refused = await runOf("wider", ["wider__write", "wider__whoami", "wider__write"]);
  expect(refused.told).toEqual([
    expect.stringContaining("has to sign in to wider again, because the granted scopes do not suffice"),
    "Done.",
    expect.stringContaining("has to sign in to wider again"),
  ]);
  const links = askedIn(refused.log).map(({ authorize_url }) => authorize_url);
  expect([links.length, new Set(links).size]).toEqual([2, 1]);
  expect((await new TestBrowser().signIn(links[0], "ada")).text).toContain("You are connected");
  expect(await scopesOf(set.id)).toEqual(["tools:write tools:use"]);
  const done = await runOf("wider", ["wider__write", "wider__whoami"]);
  expect([done.told, askedIn(done.log)]).toEqual([["Done.", "Done."], []]);
});

test("requests at the next sign-in the scopes that the list of tools requires", async () => {
  server.tools = [whoami];
  needs.set("tools/list", "tools:write");
  const set = await signedIn("listed");
  const refused = await runOf("listed", ["listed__sign_in"]);
  expect(refused.told).toEqual([expect.stringContaining("has to sign in to listed again")]);
  const [asked] = askedIn(refused.log);
  expect((await new TestBrowser().signIn(asked.authorize_url, "ada")).text).toContain("You are connected");
  expect(await scopesOf(set.id)).toEqual(["tools:write tools:use"]);
  expect((await runOf("listed", ["listed__sign_in"])).told).toEqual([
    expect.stringContaining("listed__whoami"),
  ]);
});

test("parks a run that needs a sign-in to an MCP server, and offers the tools after the sign-in", async () => {
  server.tools = [whoami];
  needs.clear();
  const body = { name: "parked", kind: "mcp", url: server.url, auth_type: "oauth", oauth_per_end_user: true };
  const { json: set } = await owner.post("/v1/agent-toolsets", body);
  const waiting = { ...config, toolsets: [{ toolset_id: set.id }], connections: { wait_minutes: 5 } };
  expect((await owner.post("/v1/agents", { name: "parked", config: waiting })).status).toBe(201);
  model.script([
    { calls: [{ name: "parked__sign_in", arguments: "{}" }] },
    { calls: [{ name: "parked__whoami", arguments: "{}" }] },
    { text: ["Done."] },
  ]);
  const { json } = await owner.post("/v1/agents/parked/invoke", { input: "Hi", end_user_id: "ada" });
  expect(json).toMatchObject({ status: "pending_approval", waiting_for_sign_in: {}, sign_in: [{}] });
  const page = await new TestBrowser().signIn(json.sign_in[0].authorize_url, "ada");
  expect(page.text).toContain("You are connected");
  const status = async () => (await owner.get(`/v1/agents/runs/${json.run_id}`)).json.status;
  await expect.poll(status, { timeout: 20_000 }).toBe("completed");
  const said = model.asked.at(-1).messages.filter(({ role }: Json) => role === "tool");
  expect(said.map(({ content }: Json) => content)).toEqual([
    expect.stringContaining("parked__whoami"),
    "Done.",
  ]);
});
