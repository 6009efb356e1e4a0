/** HTTP tools of a server with sign-in, and refusals by that server. */
import { afterEach, expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { freePort } from "#agent/testing/free-port.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startSignInServer, TestBrowser } from "#agent/testing/sign-in-server.ts";

const model = await startModelServer();
const host = await agentHost({ config: { port: String(await freePort()) } });
const owner = await host.person();
const redirectUri = `${host.baseUrl}/connect/callback`;
const shop = await startSignInServer({ redirectUri, isRegistering: true });
let made = 0;

afterEach(() => {
  shop.before = undefined;
  shop.refuses = undefined;
});

const tool = (name: string) => ({
  name,
  description: "Does.",
  method: "POST",
  path: `/${name}`,
  parameters: { type: "object" },
});

const start = async (id: string, body: object) =>
  (await owner.post(`/v1/agent-toolsets/${id}/oauth/start`, body)).json.authorize_url as string;

/**
 * Creates a toolset, an agent that uses it, and the person's connection. Returns the agent's name and the toolset's id.
 */
async function signedIn(change: object = {}, body: object = {}): Promise<{ name: string; id: string }> {
  const name = `shop${(made += 1)}`;
  const { json } = await owner.post("/v1/agent-toolsets", {
    name,
    kind: "http",
    url: shop.resource,
    auth_type: "oauth",
    http_tools: [tool("me"), tool("write")],
    ...change,
  });
  const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: json.id }] };
  expect((await owner.post("/v1/agents", { name, config })).status).toBe(201);
  const page = await new TestBrowser().signIn(await start(json.id, body), "ada");
  expect(page.text).toContain("You are connected");
  return { name, id: json.id };
}

/** Returns the results that the model got, and the ids of the end users from whom the run requested a sign-in. */
async function calls(name: string, tools: readonly string[], endUserId?: string) {
  model.script([
    ...tools.map((one) => ({ calls: [{ name: `${name}__${one}`, arguments: "{}" }] })),
    { text: ["Well."] },
  ]);
  const who = endUserId === undefined ? {} : { end_user_id: endUserId };
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Go.", ...who });
  expect(json).toMatchObject({ status: "completed" });
  const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream`;
  const { frames } = await readFrames(url, { token: owner.token });
  const told = model.asked.at(-1).messages.filter(({ role }: Json) => role === "tool");
  return {
    told: told.map(({ content }: Json) => content as string),
    links: frames
      .filter(({ event }) => event === "connection.auth_required")
      .map(({ data }) => data.authorize_url as string),
  };
}

const perEndUser = [{ oauth_per_end_user: true }, { end_user_id: "ada" }] as const;

test("refreshes a refused token during the call, without a new sign-in", async () => {
  const { name } = await signedIn(...perEndUser);
  const refused = new Set<string>();
  shop.refuses = (token) => refused.size === 0 && Boolean(refused.add(token));
  expect(await calls(name, ["me"], "ada")).toEqual({ told: ['{"account":"ada"}'], links: [] });
  expect(refused.size).toBe(1);
});

test("requires a sign-in during the call if the refused token cannot be refreshed", async () => {
  const { name } = await signedIn(...perEndUser);
  shop.refuses = () => true;
  shop.before = ({ url }, response) => {
    if (url !== "/token") return false;
    response.writeHead(400, { "content-type": "application/json" }).end('{"error":"invalid_grant"}');
    return true;
  };
  const { told, links } = await calls(name, ["me"], "ada");
  expect([told, links.length]).toEqual([[expect.stringContaining(`has to sign in to ${name} first`)], 1]);
});

test("requires a new sign-in if the server refuses a refreshed token", async () => {
  const { name } = await signedIn(...perEndUser);
  const refused = new Set<string>();
  shop.refuses = (token) => Boolean(refused.add(token));
  const { told, links } = await calls(name, ["me"], "ada");
  expect([told, links.length]).toEqual([[expect.stringContaining(`has to sign in to ${name} again`)], 1]);
  expect(refused.size).toBe(2);
});

test("requires a sign-in for the granted and the missing scopes, and meanwhile makes calls that need no more scopes", async () => {
  const { name, id } = await signedIn(...perEndUser);
  const refused = await calls(name, ["write", "me"], "ada");
  expect(refused.told).toEqual([
    expect.stringContaining("the granted scopes do not suffice"),
    '{"account":"ada"}',
  ]);
  expect((await new TestBrowser().signIn(refused.links[0]!, "ada")).text).toContain("You are connected");
  const { items } = (await owner.get(`/v1/agent-toolsets/${id}/connections`)).json;
  expect(items).toMatchObject([{ end_user_id: "ada", scope: "tools:write tools:use" }]);
  expect(await calls(name, ["write"], "ada")).toEqual({ told: ['{"account":"ada"}'], links: [] });
});

test("asks the toolset's owner to sign in again, and the next link requests the granted and the missing scopes", async () => {
  const { name, id } = await signedIn();
  const refused = await calls(name, ["write"]);
  expect(refused.links).toEqual([]);
  expect(refused.told[0]).toContain("its owner has to sign in to it again");
  expect((await new TestBrowser().signIn(await start(id, {}), "ada")).text).toContain("You are connected");
  expect((await calls(name, ["write"])).told).toEqual(['{"account":"ada"}']);
});

test("returns the toolset server's own response if that server refuses a stored secret", async () => {
  const { json } = await owner.post("/v1/agent-toolsets", {
    name: "stored",
    kind: "http",
    url: shop.resource,
    auth_secret: "a-secret-0123456789",
    http_tools: [tool("me")],
  });
  const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: json.id }] };
  await owner.post("/v1/agents", { name: "stored", config });
  const { told, links } = await calls("stored", ["me"], "ada");
  expect([told, links]).toEqual([[expect.stringContaining("HTTP 401")], []]);
});
