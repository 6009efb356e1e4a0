/** Scopes that a server requires in addition, and the authorization request of the next sign-in. */
import { beforeEach, expect, test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { freePort } from "../testing/free-port.ts";
import { startSignInServer, TestBrowser } from "../testing/sign-in-server.ts";
import { findById } from "../toolsets/find.ts";
import { resolveAccess, recordRequiredScopes, expireRefusedToken } from "./access.ts";
import { findConnection, clearRequiredScopes } from "./store.ts";
import { joinScopes } from "./provider/scopes.ts";

const host = await agentHost({ config: { port: String(await freePort()) } });
const { app } = host;
const owner = await host.person();
const shop = await startSignInServer({
  redirectUri: `${host.baseUrl}/connect/callback`,
  isRegistering: true,
});
/** Value of `scope` in each authorization request. */
let asked: (string | null)[] = [];
/** While true, the provider refuses `tools:write` with an error page of its own. */
let isRefusing = false;
let made = 0;
const usual = "tools:use offline_access";

beforeEach(() => {
  asked = [];
  isRefusing = false;
});
shop.before = ({ url = "" }, response) => {
  const { pathname, searchParams } = new URL(url, shop.issuer);
  if (pathname !== "/auth" || !searchParams.has("scope")) return false;
  const scope = searchParams.get("scope");
  asked.push(scope);
  if (!isRefusing || !scope?.includes("tools:write")) return false;
  response.writeHead(400, { "content-type": "text/html" }).end("<p>invalid_scope</p>");
  return true;
};

const link = async (id: string) =>
  (await owner.post(`/v1/agent-toolsets/${id}/oauth/start`, {})).json.authorize_url as string;
const signIn = async (id: string) => (await new TestBrowser().signIn(await link(id), "ada")).text;
const row = async (id: string) => (await findById(app.db, id))!;

/** Creates a toolset and signs its owner in. Returns the toolset's id. */
async function connectToolset(): Promise<string> {
  const { json } = await owner.post("/v1/agent-toolsets", {
    name: `shop${(made += 1)}`,
    kind: "http",
    url: shop.resource,
    auth_type: "oauth",
    http_tools: [],
  });
  expect(await signIn(json.id)).toContain("You are connected");
  asked = [];
  return json.id;
}

/** Imitates a call whose token the server refuses with 403. */
async function want(id: string, scope: string): Promise<Json> {
  const toolset = await row(id);
  const access: Json = await resolveAccess(app, toolset, null);
  return recordRequiredScopes(app, toolset, null, { token: access.token, scope });
}

test("requests the required and the granted scopes at the next sign-in, and only the usual scopes afterwards", async () => {
  const id = await connectToolset();
  expect(await want(id, "tools:write")).toMatchObject({ kind: "unavailable" });
  // Two concurrent calls require different scopes, and neither scope is granted.
  await want(id, "tools:more");
  expect((await resolveAccess(app, await row(id), null)).kind).toBe("token");
  const browser = new TestBrowser();
  const address = await link(id);
  await browser.follow(address);
  // A reload continues the same sign-in.
  expect((await browser.signIn(address, "ada")).text).toContain("You are connected");
  expect(asked).toEqual(Array.from({ length: 2 }, () => `tools:more tools:write ${usual}`));
  await signIn(id);
  expect(asked.at(-1)).toBe(usual);
});

test("requests a scope only once if the provider refuses the scope on its own page", async () => {
  const id = await connectToolset();
  await want(id, "tools:write");
  isRefusing = true;
  expect((await new TestBrowser().follow(await link(id))).text).toContain("invalid_scope");
  expect(await signIn(id)).toContain("You are connected");
  expect(asked).toEqual([`tools:write ${usual}`, usual]);
});

test("keeps a scope that becomes required during a sign-in, and drops the scopes of the abandoned link", async () => {
  const id = await connectToolset();
  await want(id, "tools:write");
  await new TestBrowser().follow(await link(id));
  await want(id, "tools:more");
  await new TestBrowser().follow(await link(id));
  expect(asked.at(-1)).toBe(`tools:more ${usual}`);
});

test("truncates the granted scopes before the required ones, and drops invalid scopes", async () => {
  const id = await connectToolset();
  const had = Array.from({ length: 700 }, (_, n) => `had:${n}`)
    .join(" ")
    .slice(0, 4096);
  await app.db.updateTable("agent_connections").set({ scope: had }).where("toolset_id", "=", id).execute();
  await want(id, `tools:write "quoted" nul\0byte größe ${"x".repeat(5000)}`);
  await new TestBrowser().follow(await link(id));
  expect(asked[0]).toMatch(/^tools:write tools:use offline_access had:0 had:1 /);
  expect(asked[0]!.length).toBeLessThanOrEqual(4096);
});

test("keeps a scope that becomes required while a sign-in link is being opened", async () => {
  const id = await connectToolset();
  await want(id, "tools:write");
  const opened = (await findConnection(app.db, id, "-"))!;
  await want(id, "tools:more");
  await clearRequiredScopes(app.db, opened);
  expect((await findConnection(app.db, id, "-"))?.wanted).toBe("tools:more tools:write");
});

test("ignores the scopes required for a refused token that another call has already refreshed", async () => {
  const id = await connectToolset();
  const toolset = await row(id);
  const { token }: Json = await resolveAccess(app, toolset, null);
  await expireRefusedToken(app, toolset, null, token);
  await resolveAccess(app, toolset, null);
  expect(await recordRequiredScopes(app, toolset, null, { token, scope: "tools:write" })).toBeUndefined();
  await new TestBrowser().follow(await link(id));
  expect(asked).toEqual([usual]);
});

test("requests the default scopes if a server does not name the scope that it requires", async () => {
  const id = await connectToolset();
  expect(await want(id, "")).toMatchObject({ kind: "unavailable" });
  expect(await signIn(id)).toContain("You are connected");
  expect(asked).toEqual([usual]);
});

test("joins two lists of scopes without duplicates, in their order", () => {
  expect(joinScopes("b a", null, undefined, "", "a  c b")).toBe("b a c");
  expect(joinScopes(null, "", " ")).toBeNull();
});
