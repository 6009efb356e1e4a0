import { sql } from "kysely";
import { beforeEach, expect, test } from "vitest";
import { openDatabase } from "#db/db.ts";
import type { Database } from "#schema.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { agentHost, type Json, type Person } from "../testing/agent-app.ts";
import { freePort } from "../testing/free-port.ts";
import { startMcpServer } from "../testing/mcp-server.ts";
import { startSignInServer, TestBrowser } from "../testing/sign-in-server.ts";
import { agentTasks } from "../jobs.ts";
import { findById } from "../toolsets/find.ts";
import { deleteConnections } from "./store.ts";
import { resolveAccess, expireRefusedToken } from "./access.ts";
import { offerSignIn } from "./flow/sign-in-link.ts";
import { revokeConnections } from "./revocation.ts";
import { deleteRegisteredClient } from "./store.ts";

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

const start = async (id: string, body: object = {}) => {
  const { status, json } = await owner.post(`/v1/agent-toolsets/${id}/oauth/start`, body);
  expect(status, JSON.stringify(json)).toBe(200);
  return json.authorize_url as string;
};
const connections = async (id: string) =>
  (await owner.get(`/v1/agent-toolsets/${id}/connections`)).json.items;
const row = async (id: string) => (await findById(app.db, id))!;
const access = async (id: string, endUser: string | null = null) =>
  resolveAccess(app, await row(id), endUser);

/** Returns the sign-in link of a run's event. */
async function linkFor(id: string, who: string): Promise<string> {
  let told = "";
  await offerSignIn(app, { id }, who, async ({ authorize_url }, store) => {
    told = authorize_url;
    await app.db.transaction().execute(store);
  });
  return told;
}

test("calls the tool with the token of the person who signed in by the link", async () => {
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

async function connectToolset(change: object = {}, body: object = {}, account = "ada"): Promise<Json> {
  const set = await toolset(change);
  const page = await new TestBrowser().signIn(await start(set.id, body), account);
  expect([page.status, page.text]).toEqual([200, expect.stringContaining("You are connected")]);
  return set;
}
const tokenOf = async (id: string, endUser: string | null = null) => {
  const got = await access(id, endUser);
  if (got.kind !== "token") throw new Error(JSON.stringify(got));
  return got.token;
};
const calls = (token: string) =>
  fetch(shop.resource, { headers: { authorization: `Bearer ${token}` } }).then(({ status }) => status);
const expire = (id: string, inSeconds = -1) =>
  app.db
    .updateTable("agent_connections")
    .set({ expires_at: new Date(Date.now() + inSeconds * 1000) })
    .where("toolset_id", "=", id)
    .execute();
const grants = () => shop.tokenRequests.map(({ grant, status }) => [grant, status]);

test("keeps the connections of different end users separate", async () => {
  const set = await toolset({ oauth_per_end_user: true });
  expect(await access(set.id, "ada")).toEqual({
    kind: "auth_required",
    who: "ada",
    connection: null,
    isAgain: false,
  });
  const first = await linkFor(set.id, "ada");
  // A second request returns the same link, because a session needs the link more than once.
  expect(await linkFor(set.id, "ada")).toBe(first);
  expect(await linkFor(set.id, "bob")).not.toBe(first);
  await new TestBrowser().signIn(first, "ada-at-the-shop");
  const token = await tokenOf(set.id, "ada");
  expect(await calls(token)).toBe(200);
  expect(shop.calls.at(-1)?.account).toBe("ada-at-the-shop");
  expect(await access(set.id, "bob")).toMatchObject({ kind: "auth_required" });
  // A call without an end user acts for the owner, and a run offers the owner no link.
  expect(await access(set.id, null)).toMatchObject({ kind: "unavailable" });
  await new TestBrowser().signIn(await start(set.id), "the-owner");
  expect((await connections(set.id)).map((one: Json) => one.end_user_id)).toEqual(["-", "ada"]);
});

test.each([
  [{}, { end_user_id: "ada" }, 400, "/end_user_id"],
  [{}, { return_url: "http://example.com/" }, 400, "/return_url"],
  [{}, { return_url: "javascript:alert(1)" }, 400, "/return_url"],
  [{ auth_type: undefined }, {}, 409, undefined],
] as const)("refuses to start a sign-in for: %j %j", async (change, body, status, pointer) => {
  const set = await toolset(change);
  const answer = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, body);
  expect([answer.status, answer.json.pointer]).toEqual([status, pointer]);
});

test("uses the id and the secret of a pre-registered client unchanged", async () => {
  const set = await connectToolset({
    oauth_client_id: "known:beforehand/client",
    oauth_client_secret: "a+secret:of/the client%0123456789",
  });
  await tokenOf(set.id).then(calls);
  expect(shop.calls.at(-1)?.client).toBe("known:beforehand/client");
  await expire(set.id);
  expect(await tokenOf(set.id).then(calls)).toBe(200);
});

test("sends a client's secret to its own provider only, even if the server names another provider later", async () => {
  const client = {
    oauth_client_id: "known:beforehand/client",
    oauth_client_secret: "a+secret:of/the client%0123456789",
  };
  const set = await connectToolset(client);
  const evil = await startSignInServer({ redirectUri });
  // Imitates a server that names another provider at the same address.
  await sql`update agent_toolsets set url = ${evil.resource} where id = ${set.id}`.execute(app.db);
  const begin = () => owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {});
  expect(await begin()).toMatchObject({
    status: 424,
    json: { code: "sign_in_unavailable", detail: expect.stringContaining("another provider") },
  });
  // The client stays bound to its provider after the provider rejects it.
  await deleteRegisteredClient(app.db, set.id, client.oauth_client_id);
  expect((await begin()).status).toBe(424);
  expect((await owner.call("PATCH", `/v1/agent-toolsets/${set.id}`, client)).status).toBe(200);
  expect((await begin()).status).toBe(200);
});

test("registers one client per toolset, and uses this client for every sign-in", async () => {
  const registered: unknown[] = [];
  shop.before = ({ url }) => {
    if (url === "/reg") registered.push(url);
    return false;
  };
  const set = await connectToolset();
  await new TestBrowser().signIn(await start(set.id), "ada");
  expect(registered).toHaveLength(1);
  expect(await tokenOf(set.id).then(calls)).toBe(200);
});

test("serves the client metadata document, and sets cookies for its own host only", async () => {
  const publicPort = await freePort();
  const [name, local] = ["https://kontor.test", `http://127.0.0.1:${publicPort}`];
  const really = (url: string) => (url.startsWith(name) ? local + url.slice(name.length) : url);
  const other = await agentHost({ config: { port: String(publicPort), publicUrl: name } });
  const provider = await startSignInServer({
    redirectUri: `${name}/connect/callback`,
    takesDocuments: true,
    // The guard against private hosts is off, because the servers of every test listen on loopback.
    fetch: (url, init) =>
      fetch(really(new Request(url).url), { headers: init?.headers ?? {}, redirect: "manual" }),
  });
  const person = await other.person();
  const set = await toolset({ url: provider.resource }, person);
  const { json } = await person.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {});
  expect(json.authorize_url).toMatch(/^https:\/\/kontor\.test\/connect\//);
  const browser = new TestBrowser(really);
  const opened = await browser.get(json.authorize_url);
  expect(opened.headers.get("set-cookie")).toMatch(
    /^__Host-kontor_connect_\w+=[\w-]{43}; Path=\/; Max-Age=600; HttpOnly; SameSite=Lax; Secure$/,
  );
  const page = await browser.signIn(json.authorize_url, "ada");
  expect(page.text).toContain("You are connected");
  const got = await resolveAccess(other.app, (await findById(other.app.db, set.id))!, null);
  await fetch(provider.resource, { headers: { authorization: `Bearer ${(got as Json).token}` } });
  expect(provider.calls).toEqual([{ account: "ada", client: `${name}/connect/client.json` }]);
});

test("explains the fix if a provider does not register clients", async () => {
  const strict = await startSignInServer({ redirectUri });
  const set = await toolset({ url: strict.resource });
  const { status, json } = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {});
  expect([status, json]).toMatchObject([424, { code: "sign_in_unavailable" }]);
  expect(json.detail).toContain(redirectUri);
});

test("sends one refresh request when two processes need a new token at the same time", async () => {
  const set = await connectToolset();
  const before = await tokenOf(set.id);
  await expire(set.id, 30);
  shop.tokenRequests = [];
  const second = openDatabase<Database>(host.connection, { maxConnections: 5, onError: () => {} });
  const elsewhere = { ...app, db: second.db };
  const toolsetRow = await row(set.id);
  const got = await Promise.all(
    Array.from({ length: 12 }, (_, n) => resolveAccess(n % 2 ? app : elsewhere, toolsetRow, null)),
  );
  await second.close();
  const tokens = new Set(got.map((one) => (one as Json).token));
  expect(grants()).toEqual([["refresh_token", 200]]);
  expect([tokens.size, tokens.has(before)]).toEqual([1, false]);
  expect(await calls([...tokens][0] as string)).toBe(200);
});

test("another process can refresh a token seconds after the refreshing process died", async () => {
  const set = await connectToolset();
  await expire(set.id);
  // Imitates the row that a killed process leaves.
  await app.db
    .updateTable("agent_connections")
    .set({ refreshing_until: new Date(Date.now() + 500) })
    .where("toolset_id", "=", set.id)
    .execute();
  expect(await tokenOf(set.id).then(calls)).toBe(200);
});

test("keeps using a valid token while the provider is down", async () => {
  const set = await connectToolset();
  const before = await tokenOf(set.id);
  shop.before = ({ url }, response) => url === "/token" && Boolean(response.writeHead(503).end());
  await expire(set.id, 30);
  expect(await tokenOf(set.id)).toBe(before);
  await expire(set.id);
  expect(await access(set.id)).toMatchObject({ kind: "unavailable" });
  expect(await connections(set.id)).toMatchObject([{ status: "connected" }]);
  shop.before = undefined;
  expect(await tokenOf(set.id)).not.toBe(before);
});

test("requires a new sign-in after the provider rejects the refresh token", async () => {
  const set = await connectToolset({ oauth_per_end_user: true }, { end_user_id: "ada" });
  shop.before = ({ url }, response) =>
    url === "/token" &&
    Boolean(
      response
        .writeHead(400, { "content-type": "application/json" })
        .end('{"error":"invalid_grant","error_description":"over"}'),
    );
  await expire(set.id);
  expect(await access(set.id, "ada")).toMatchObject({ kind: "auth_required" });
  expect(await connections(set.id)).toMatchObject([{ end_user_id: "ada", status: "needs_reauth" }]);
  shop.before = undefined;
  await new TestBrowser().signIn(await linkFor(set.id, "ada"), "ada");
  expect(await connections(set.id)).toMatchObject([{ status: "connected" }]);
});

test("refreshes a token that the toolset's server refuses", async () => {
  const set = await connectToolset();
  const before = await tokenOf(set.id);
  await expireRefusedToken(app, await row(set.id), null, "another one");
  expect(await tokenOf(set.id)).toBe(before);
  await expireRefusedToken(app, await row(set.id), null, before);
  expect(await tokenOf(set.id)).not.toBe(before);
});

test("binds a sign-in link to the first browser that opens it, and accepts the link once, until it expires", async () => {
  const set = await toolset();
  const link = await start(set.id);
  const [hers, his] = [new TestBrowser(), new TestBrowser()];
  expect((await hers.get(link)).status).toBe(303);
  expect(await his.get(link)).toMatchObject({ status: 410, text: expect.stringContaining("already used") });
  // The same browser may reload.
  expect((await hers.get(link)).status).toBe(303);
  expect((await hers.signIn(link, "ada")).text).toContain("You are connected");
  expect((await hers.get(link)).status).toBe(410);
  const late = await start(set.id);
  await app.db
    .updateTable("agent_connect_links")
    .set({ expires_at: new Date(0) })
    .execute();
  expect(await his.get(late)).toMatchObject({ status: 410, text: expect.stringContaining("has expired") });
  expect((await his.get(`${base}/connect/${"x".repeat(32)}`)).status).toBe(404);
  expect((await fetch(late, { method: "HEAD" })).status).toBe(405);
});

test("refuses a callback whose cookie, state or issuer does not match", async () => {
  const set = await toolset();
  const browser = new TestBrowser();
  const link = await start(set.id);
  const back = await browser.signIn(link, "ada", redirectUri);
  shop.tokenRequests = [];
  // Another browser without the cookie opens the callback's URL.
  expect((await new TestBrowser().get(back.url)).status).toBe(400);
  const wrong = new URL(back.url);
  wrong.searchParams.set("state", "another");
  expect((await browser.get(wrong.href)).status).toBe(400);
  const forged = new URL(back.url);
  forged.searchParams.set("iss", "https://evil.example");
  expect(await browser.get(forged.href)).toMatchObject({
    status: 400,
    text: expect.stringContaining("another issuer"),
  });
  // The failed attempt used the link up, and sent no code to the provider.
  expect((await browser.get(back.url)).status).toBe(400);
  expect([shop.tokenRequests, await connections(set.id)]).toEqual([[], []]);

  const [again, other] = [await start(set.id), new TestBrowser()];
  const without = new URL((await other.signIn(again, "ada", redirectUri)).url);
  without.searchParams.delete("iss");
  expect((await other.get(without.href)).status).toBe(400);
  expect(shop.tokenRequests).toEqual([]);
});

test("redirects the browser to the return URL after success and after failure", async () => {
  const set = await toolset();
  const returnUrl = "https://shop.example/settings?tab=1";
  const done = await new TestBrowser().signIn(
    await start(set.id, { return_url: returnUrl }),
    "ada",
    "https://shop.example",
  );
  expect(done.url).toBe(`${returnUrl}&connection=connected`);
  const browser = new TestBrowser();
  const page = await browser.follow(await start(set.id, { return_url: returnUrl }));
  const abort = /href="([^"]*abort[^"]*)"/.exec(page.text)?.[1] ?? "";
  const refused = await browser.follow(new URL(abort, page.url).href, "https://shop.example");
  expect(refused.url).toBe(`${returnUrl}&connection=failed&error=access_denied`);
});

test("refuses provider metadata with a wrong issuer, unsafe fields, a redirect or too many bytes", async () => {
  const set = await toolset();
  const refusal = async () => {
    const { status, json } = await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {});
    return [status, json.detail];
  };
  const say = (change: object) => {
    shop.before = ({ url }, response) => {
      if (!url?.startsWith("/.well-known/")) return false;
      const metadata = {
        issuer: shop.issuer,
        authorization_endpoint: `${shop.issuer}/auth`,
        token_endpoint: `${shop.issuer}/token`,
        registration_endpoint: `${shop.issuer}/reg`,
        response_types_supported: ["code"],
        code_challenge_methods_supported: ["S256"],
        ...change,
      };
      response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(metadata));
      return true;
    };
  };
  say({ issuer: "https://evil.example" });
  expect(await refusal()).toEqual([424, expect.stringContaining("another issuer")]);
  say({ code_challenge_methods_supported: ["plain"] });
  expect(await refusal()).toEqual([424, expect.stringContaining("PKCE")]);
  say({ code_challenge_methods_supported: undefined });
  expect(await refusal()).toEqual([424, expect.stringContaining("PKCE")]);
  say({ token_endpoint: "http://token.example/" });
  expect(await refusal()).toEqual([424, expect.stringContaining("not an https address")]);
  say({ registration_endpoint: "https://10.0.0.1/reg" });
  expect(await refusal()).toEqual([424, expect.stringContaining("private or internal")]);
  shop.before = (_, response) => Boolean(response.writeHead(302, { location: "https://10.0.0.1/" }).end());
  expect(await refusal()).toEqual([424, expect.stringContaining("redirect")]);
  shop.before = (_, response) => Boolean(response.writeHead(200).end("x".repeat(300_000)));
  expect(await refusal()).toEqual([424, expect.stringContaining("more than 262144 bytes")]);
});

test("accepts a server without protected resource metadata as its own provider, for its own origin only", async () => {
  const old = await startMcpServer();
  const { origin } = new URL(old.url);
  let issuer = `${origin}/oauth`;
  old.before = ({ path }, response) => {
    if (path !== "/.well-known/oauth-authorization-server") return Boolean(response.writeHead(404).end());
    const metadata = {
      issuer,
      authorization_endpoint: `${issuer}/authorize`,
      token_endpoint: `${issuer}/token`,
      response_types_supported: ["code"],
      code_challenge_methods_supported: ["S256"],
    };
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(metadata));
    return true;
  };
  const set = await toolset({ url: old.url, oauth_client_id: "known" });
  const { location } = Object.fromEntries((await new TestBrowser().get(await start(set.id))).headers);
  expect(location).toContain(`${origin}/oauth/authorize?`);
  issuer = "https://evil.example";
  expect((await owner.post(`/v1/agent-toolsets/${set.id}/oauth/start`, {})).json).toMatchObject({
    code: "sign_in_unavailable",
    detail: expect.stringContaining("another issuer"),
  });
});

test("deletes the tokens at a disconnect, and revokes them at the provider", async () => {
  const set = await connectToolset({ oauth_per_end_user: true }, { end_user_id: "ada" });
  await new TestBrowser().signIn(await start(set.id), "the-owner");
  const path = `/v1/agent-toolsets/${set.id}`;
  expect((await owner.post(`${path}/oauth/disconnect`)).status).toBe(204);
  expect((await owner.post(`${path}/oauth/disconnect`)).status).toBe(204);
  expect(await connections(set.id)).toMatchObject([{ end_user_id: "ada" }]);
  const token = await tokenOf(set.id, "ada");
  expect((await owner.call("DELETE", `${path}/connections/ada`)).status).toBe(204);
  expect(await owner.call("DELETE", `${path}/connections/ada`)).toMatchObject({
    status: 404,
    json: { code: "connection_not_found" },
  });
  await expect.poll(() => shop.revocations.length, { timeout: 10_000 }).toBe(2);
  expect(await calls(token)).toBe(401);
});

test("deletes the connections of an erased end user, and aborts their sign-ins in progress", async () => {
  const set = await connectToolset({ oauth_per_end_user: true }, { end_user_id: "ada" });
  const browser = new TestBrowser();
  const back = await browser.signIn(await start(set.id, { end_user_id: "ada" }), "ada", redirectUri);
  onKillPoint(async (point) => {
    if (point !== "agent.connect.exchanged") return;
    onKillPoint(undefined);
    const count = await app.db.transaction().execute((tx) => revokeConnections(tx, [set.id], "ada"));
    expect(count).toBe(1);
  });
  await browser.get(back.url);
  expect(await connections(set.id)).toEqual([]);
  await expect.poll(() => shop.revocations.length, { timeout: 10_000 }).toBe(2);
  for (const table of ["agent_connections", "agent_connect_links"]) {
    const { rows } = await sql`select from ${sql.table(table)} where toolset_id = ${set.id}`.execute(app.db);
    expect(rows).toEqual([]);
  }
});

test("a disconnect aborts a sign-in that completes at the same time, without a deadlock", async () => {
  const set = await toolset();
  const browser = new TestBrowser();
  const back = await browser.signIn(await start(set.id), "ada", redirectUri);
  const ending = await app.db.transaction().execute(async (tx) => {
    await sql`select from agent_toolsets where id = ${set.id} for update`.execute(tx);
    const page = browser.get(back.url);
    const waiting = sql`
      select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    await expect.poll(async () => (await waiting.execute(app.db)).rows.length).toBe(1);
    await deleteConnections(tx, [set.id], "-");
    return { page };
  });
  expect((await ending.page).status).toBe(200);
  expect(await connections(set.id)).toEqual([]);
  await expect.poll(() => shop.revocations.length, { timeout: 10_000 }).toBe(1);
});

test("completes a sign-in with a new link after a crash during the first sign-in", async () => {
  const set = await toolset();
  const browser = new TestBrowser();
  const back = await browser.signIn(await start(set.id), "ada", redirectUri);
  onKillPoint(async (point) => {
    if (point === "agent.connect.exchanged") throw new Error("gone");
  });
  expect((await browser.get(back.url)).status).toBe(500);
  onKillPoint(undefined);
  expect((await browser.get(back.url)).status).toBe(410);
  expect(await connections(set.id)).toEqual([]);
  expect((await browser.signIn(await start(set.id), "ada")).text).toContain("You are connected");
});

test("deletes a toolset's connections when the toolset moves to another origin or is deleted", async () => {
  const [moved, gone] = [await connectToolset(), await connectToolset()];
  const patch = (body: object) => owner.call("PATCH", `/v1/agent-toolsets/${moved.id}`, body);
  expect((await patch({ url: `${shop.resource}/deeper` })).status).toBe(200);
  expect(await connections(moved.id)).toHaveLength(1);
  expect((await patch({ url: "http://127.0.0.1:9/" })).status).toBe(200);
  expect(await connections(moved.id)).toEqual([]);
  expect((await owner.call("DELETE", `/v1/agent-toolsets/${gone.id}`)).status).toBe(204);
  await expect.poll(() => shop.revocations.length, { timeout: 10_000 }).toBe(2);
});

test("stores tokens, codes and secrets encrypted only", async () => {
  const set = await connectToolset();
  const token = await tokenOf(set.id);
  await expire(set.id);
  const secrets = [token, await tokenOf(set.id)];
  for (const { body } of shop.tokenRequests) {
    const asked = new URLSearchParams(body);
    for (const name of ["code", "code_verifier", "refresh_token"])
      if (asked.has(name)) secrets.push(asked.get(name)!);
  }
  expect(secrets).toHaveLength(5);
  await owner.post(`/v1/agent-toolsets/${set.id}/oauth/disconnect`);
  const { rows: tables } = await sql<{ name: string }>`
    select format('%I.%I', schemaname, tablename) as name from pg_tables
    where schemaname in ('public', 'graphile_worker')`.execute(app.db);
  for (const { name } of tables) {
    const { rows } = await sql`select t::text as row from ${sql.raw(name)} as t`.execute(app.db);
    for (const secret of secrets) expect(JSON.stringify(rows).includes(secret), name).toBe(false);
  }
});
