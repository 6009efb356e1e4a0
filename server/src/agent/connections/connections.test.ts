import { createServer } from "node:net";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { beforeEach, expect, test } from "vitest";
import { agentHost, type Json, type Person } from "../testing/agent-app.ts";
import { startSignInServer, TestBrowser } from "../testing/sign-in-server.ts";
import { agentTasks } from "../jobs.ts";
import { findById } from "../toolsets/find.ts";
import { accessFor } from "./access.ts";

const port = await freePort();
const base = `http://127.0.0.1:${port}`;
const redirectUri = `${base}/connect/callback`;
const host = await agentHost({ config: { port: String(port) } });
const { app } = host;
await app.jobs.startWorker(agentTasks(app));
const owner = await host.person();
const shop = await startSignInServer({ redirectUri, isRegistering: true });
let made = 0;

beforeEach(() => {
  shop.before = undefined;
  shop.tokenRequests = [];
  shop.revocations = [];
  shop.calls = [];
});

async function freePort(): Promise<number> {
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port: free } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return free;
}

async function toolset(change: object = {}, person: Person = owner): Promise<Json> {
  made += 1;
  const { status, json } = await person.post("/v1/agent-toolsets", {
    name: `shop${made}`,
    kind: "http",
    url: shop.resource,
    auth_type: "oauth",
    http_tools: [
      { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
    ],
    ...change,
  });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

const connections = async (id: string) =>
  (await owner.get(`/v1/agent-toolsets/${id}/connections`)).json.items;
const row = async (id: string) => (await findById(app.db, id))!;
const access = async (id: string, endUser: string | null = null) => accessFor(app, await row(id), endUser);

test("somebody signs in by a link, and the agent calls as them", async () => {
  const set = await toolset();
  expect(await access(set.id)).toMatchObject({ kind: "unavailable" });
  const { status, json } = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {});
  expect([status, json]).toMatchObject([200, { expires_in: 600 }]);
  expect(json.authorize_url).toMatch(new RegExp(`^${base}/connect/[\\w-]{32}$`));
  const page = await new TestBrowser().signIn(json.authorize_url, "ada");
  expect([page.status, page.text]).toEqual([200, expect.stringContaining("You are connected")]);
  expect(page.headers.get("content-security-policy")).toContain("default-src 'none'");
  expect(await connections(set.id)).toEqual([
    {
      end_user_id: "-",
      scope: "tools:use",
      status: "connected",
      expires_at: expect.any(String),
      connected_at: expect.any(String),
    },
  ]);
  const got = await access(set.id);
  expect(got).toMatchObject({ kind: "token" });
  const response = await fetch(shop.resource, {
    headers: { authorization: `Bearer ${(got as Json).token}` },
  });
  expect(await response.json()).toEqual({ account: "ada" });
});
