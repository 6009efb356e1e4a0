/** A server wants more than what somebody granted: what the next sign-in asks for. */
import { beforeEach, expect, test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { freePort } from "../testing/free-port.ts";
import { startSignInServer, TestBrowser } from "../testing/sign-in-server.ts";
import { findById } from "../toolsets/find.ts";
import { accessFor, moreWanted, tokenRefused } from "./access.ts";
import { findConnection, forgetWanted } from "./store.ts";
import { union } from "./provider/scopes.ts";

const host = await agentHost({ config: { port: String(await freePort()) } });
const { app } = host;
const owner = await host.person();
const shop = await startSignInServer({
  redirectUri: `${host.baseUrl}/connect/callback`,
  isRegistering: true,
});
/** Of every browser that was sent to the provider. */
let asked: (string | null)[] = [];
/** Where one that asks for `tools:write` sees a page of the provider's own. */
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

/** Of a toolset that the owner signed in to. */
async function connected(): Promise<string> {
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

/** As a call does whose token is refused with 403. */
async function want(id: string, scope: string): Promise<Json> {
  const toolset = await row(id);
  const access: Json = await accessFor(app, toolset, null);
  return moreWanted(app, toolset, null, { token: access.token, scope });
}

test("the next sign-in asks for what is wanted and what was had, and the one after it for neither again", async () => {
  const id = await connected();
  expect(await want(id, "tools:write")).toMatchObject({ kind: "unavailable" });
  // Two calls at once want something else each.
  await want(id, "tools:more");
  expect((await accessFor(app, await row(id), null)).kind).toBe("token");
  const browser = new TestBrowser();
  const address = await link(id);
  await browser.follow(address);
  // A reload is the same sign-in.
  expect((await browser.signIn(address, "ada")).text).toContain("You are connected");
  expect(asked).toEqual(Array.from({ length: 2 }, () => `tools:more tools:write ${usual}`));
  await signIn(id);
  expect(asked.at(-1)).toBe(usual);
});

test("a scope that the provider refuses on a page of its own is asked for once", async () => {
  const id = await connected();
  await want(id, "tools:write");
  isRefusing = true;
  expect((await new TestBrowser().follow(await link(id))).text).toContain("invalid_scope");
  expect(await signIn(id)).toContain("You are connected");
  expect(asked).toEqual([`tools:write ${usual}`, usual]);
});

test("what is wanted while somebody signs in is not lost with what they were asked for, unless they are through", async () => {
  const id = await connected();
  await want(id, "tools:write");
  await new TestBrowser().follow(await link(id));
  await want(id, "tools:more");
  await new TestBrowser().follow(await link(id));
  expect(asked.at(-1)).toBe(`tools:more ${usual}`);
});

test("what was granted is cut before what is wanted, and what is no scope is asked of nobody", async () => {
  const id = await connected();
  const had = Array.from({ length: 700 }, (_, n) => `had:${n}`)
    .join(" ")
    .slice(0, 4096);
  await app.db.updateTable("agent_connections").set({ scope: had }).where("toolset_id", "=", id).execute();
  await want(id, `tools:write "quoted" nul\0byte größe ${"x".repeat(5000)}`);
  await new TestBrowser().follow(await link(id));
  expect(asked[0]).toMatch(/^tools:write tools:use offline_access had:0 had:1 /);
  expect(asked[0]!.length).toBeLessThanOrEqual(4096);
});

test("what comes to be wanted while a link is being opened is not forgotten with what it asks for", async () => {
  const id = await connected();
  await want(id, "tools:write");
  const opened = (await findConnection(app.db, id, "-"))!;
  await want(id, "tools:more");
  await forgetWanted(app.db, opened);
  expect((await findConnection(app.db, id, "-"))?.wanted).toBe("tools:more tools:write");
});

test("a token that is not the one there is wants nothing: the newer one is tried", async () => {
  const id = await connected();
  const toolset = await row(id);
  const { token }: Json = await accessFor(app, toolset, null);
  await tokenRefused(app, toolset, null, token);
  await accessFor(app, toolset, null);
  expect(await moreWanted(app, toolset, null, { token, scope: "tools:write" })).toBeUndefined();
  await new TestBrowser().follow(await link(id));
  expect(asked).toEqual([usual]);
});

test("a server that does not say what it wants has somebody asked for what it says to everybody", async () => {
  const id = await connected();
  expect(await want(id, "")).toMatchObject({ kind: "unavailable" });
  expect(await signIn(id)).toContain("You are connected");
  expect(asked).toEqual([usual]);
});

test("scopes are joined once each, in the order in which they are named", () => {
  expect(union("b a", null, undefined, "", "a  c b")).toBe("b a c");
  expect(union(null, "", " ")).toBeNull();
});
