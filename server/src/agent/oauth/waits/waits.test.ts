/** Runs that wait until their end user signs in to a toolset. */
import { beforeEach, expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { freePort } from "#agent/testing/free-port.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startSignInServer, TestBrowser } from "#agent/testing/sign-in-server.ts";
import { rowsWith } from "#agent/testing/whole-database.ts";
import { renewLinks } from "./renew.ts";
import { moveSignInDeadlines } from "./waits.ts";

const host = await agentHost({ config: { port: String(await freePort()) } });
const owner = await host.person();
const model = await startModelServer();
const shop = await startSignInServer({
  redirectUri: `${host.baseUrl}/connect/callback`,
  isRegistering: true,
});
const base = await modelConfig(owner, model.url);
let made = 0;

beforeEach(() => {
  shop.calls = [];
});

const tool = (name: string) => ({
  name,
  description: "Does.",
  method: "POST",
  path: `/${name}`,
  parameters: { type: "object" },
});

async function agent(config: object = { connections: { wait_minutes: 60 } }) {
  const name = `shop${(made += 1)}`;
  const { json } = await owner.post("/v1/agent-toolsets", {
    name,
    kind: "http",
    url: shop.resource,
    auth_type: "oauth",
    oauth_per_end_user: true,
    http_tools: [tool("me"), tool("write"), tool("sell")],
  });
  const use = { toolset_id: json.id, tools: { sell: { policy: "ask" } } };
  const created = await owner.post("/v1/agents", { name, config: { ...base, toolsets: [use], ...config } });
  expect(created.status, JSON.stringify(created.json)).toBe(201);
  return { name, toolset: json.id as string };
}

/** Scripts a model that makes these calls in one step, and then gives its final answer. */
function script(name: string, tools: readonly string[]) {
  model.script([
    { calls: tools.map((one) => ({ name: `${name}__${one}`, arguments: "{}" })) },
    { text: ["Well."] },
  ]);
}

async function invoke(name: string, who = "ada", tools: readonly string[] = ["me"]): Promise<Json> {
  script(name, tools);
  const { status, json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Go.", end_user_id: who });
  expect([status, json.status]).toEqual([200, "pending_approval"]);
  return json;
}

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;
const events = async (id: string) =>
  (await readFrames(`${host.baseUrl}/v1/agents/runs/${id}/stream`, { token: owner.token })).frames.map(
    ({ data }) => data,
  );
const toolResults = () =>
  model.asked
    .at(-1)
    .messages.filter(({ role }: Json) => role === "tool")
    .map(({ content }: Json) => content as string);

async function signIn(link: string, account = "ada-at-the-shop"): Promise<void> {
  expect((await new TestBrowser().signIn(link, account)).text).toContain("You are connected");
}

async function waitForCompletion(id: string): Promise<Json> {
  await expect.poll(async () => (await run(id)).status, { timeout: 20_000 }).toBe("completed");
  return run(id);
}

const lapse = (runId: string) =>
  host.app.db
    .updateTable("agent_sign_in_waits")
    .set({ expires_at: new Date(Date.now() - 1) })
    .where("run_id", "=", runId)
    .execute();
const waitRows = (runId: string) =>
  host.app.db.selectFrom("agent_sign_in_waits").selectAll().where("run_id", "=", runId).execute();

test("parks a run until its end user signs in, and repeats the call afterwards", async () => {
  const { name, toolset } = await agent();
  const json = await invoke(name);
  expect(json).toMatchObject({
    approval: null,
    approvals: [],
    output: null,
    waiting_for_sign_in: { expires_at: expect.stringMatching(/Z$/) },
    sign_in: [
      { toolset_id: toolset, end_user_id: "ada", authorize_url: expect.stringContaining("/connect/") },
    ],
  });
  const leftMs = Date.parse(json.waiting_for_sign_in.expires_at) - Date.now();
  expect(Math.round(leftMs / 60_000)).toBe(60);
  const { waiting_for_sign_in, sign_in } = json;
  expect(await run(json.run_id)).toMatchObject({ waiting_for_sign_in, sign_in, tools_called: [] });
  const listed = (await owner.get(`/v1/agents/runs?session_id=${json.session_id}`)).json.items;
  expect(listed).toMatchObject([{ status: "pending_approval", waiting_for_sign_in }]);
  const row = await host.app.db
    .selectFrom("agent_runs")
    .select("process_id")
    .where("id", "=", json.run_id)
    .executeTakeFirstOrThrow();
  expect(row.process_id).toBeNull();
  const body = { input: "Well?", session_id: json.session_id };
  expect(await owner.post(`/v1/agents/${name}/invoke`, body)).toMatchObject({
    status: 409,
    json: { code: "approval_pending", run_id: json.run_id },
  });
  expect(model.asked).toHaveLength(1);
  await signIn(sign_in[0].authorize_url);
  expect(await waitForCompletion(json.run_id)).toMatchObject({
    output: "Well.",
    waiting_for_sign_in: null,
    tools_called: [{ status: "completed" }],
  });
  expect(toolResults()).toEqual(['{"account":"ada-at-the-shop"}']);
  expect(shop.calls.map(({ account }) => account)).toEqual(["ada-at-the-shop"]);
  const log = await events(json.run_id);
  expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
  const from = log.findIndex(({ type }) => type === "tool.started");
  expect(log.slice(from)).toMatchObject([
    { type: "tool.started" },
    { type: "connection.auth_required", toolset_id: toolset },
    { type: "run.pending_approval", request_id: null, request_ids: [], sign_in: [toolset] },
    { type: "connection.auth_resolved", toolset_id: toolset, end_user_id: "ada", outcome: "connected" },
    { type: "run.started" },
    { type: "tool.started" },
    { type: "tool.completed" },
    { type: "step.started" },
    { type: "message.started" },
    { type: "message.delta" },
    { type: "message.completed" },
    { type: "step.completed" },
    { type: "run.completed" },
  ]);
});

test("does not wait for a sign-in unless the config sets wait_minutes", async () => {
  for (const config of [{}, { connections: { wait_minutes: 0 } }]) {
    const { name } = await agent(config);
    script(name, ["me"]);
    const body = { input: "Go.", end_user_id: "ada" };
    const { json } = await owner.post(`/v1/agents/${name}/invoke`, body);
    expect(json).toMatchObject({ status: "completed", sign_in: [{}], waiting_for_sign_in: null });
  }
  const config = { ...base, connections: { wait_minutes: 43_201 } };
  expect((await owner.post("/v1/agents", { name: "long", config })).status).toBe(400);
});

test("notifies the model when a wait reaches its deadline, and does not wait for the same toolset again", async () => {
  const { name } = await agent();
  const json = await invoke(name);
  const call = [{ name: `${name}__me`, arguments: "{}" }];
  model.script([{ calls: call }, { text: ["Well."] }]);
  await lapse(json.run_id);
  // A read resolves the wait, even if no sweep has run.
  expect((await run(json.run_id)).status).not.toBe("pending_approval");
  expect(await waitForCompletion(json.run_id)).toMatchObject({
    tools_called: [{ status: "expired" }, { status: "failed" }],
  });
  expect(toolResults()).toEqual([
    expect.stringContaining("Nobody signed in for this tool in time"),
    expect.stringContaining("has to sign in"),
  ]);
  const log = await events(json.run_id);
  expect(log.filter(({ type }) => type === "connection.auth_resolved")).toMatchObject([
    { outcome: "expired" },
  ]);
  expect(log.filter(({ type }) => type === "run.pending_approval")).toHaveLength(1);
});

test.each(["cancel", "end"])("ends the wait for a sign-in when its run ends: %s", async (how) => {
  const { name } = await agent();
  const json = await invoke(name);
  if (how === "cancel") await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  else await owner.call("DELETE", `/v1/agents/${name}/sessions/${json.session_id}`);
  expect(await run(json.run_id)).toMatchObject({ status: "failed", waiting_for_sign_in: null });
  expect(await waitRows(json.run_id)).toMatchObject([{ status: "cancelled" }]);
  expect((await events(json.run_id)).slice(-2)).toMatchObject([
    { type: "connection.auth_resolved", outcome: "cancelled" },
    { type: "run.failed" },
  ]);
  if (how === "end") return;
  script(name, []);
  model.script([{ text: ["Well."] }]);
  expect((await owner.post(`/v1/agents/runs/${json.run_id}/resume`)).status).toBe(200);
  await host.runs.waitForOutcome(json.run_id, 20_000);
  const again = await run(json.run_id);
  expect(again).toMatchObject({ status: "pending_approval", waiting_for_sign_in: {} });
  await signIn(again.sign_in[0].authorize_url);
  await waitForCompletion(json.run_id);
  expect(toolResults()).toEqual(['{"account":"ada-at-the-shop"}']);
});

test("continues a run only after a sign-in of the run's own end user", async () => {
  const { name } = await agent();
  const bob = await invoke(name, "bob");
  const ada = await invoke(name, "ada");
  await signIn(ada.sign_in[0].authorize_url);
  await waitForCompletion(ada.run_id);
  expect((await run(bob.run_id)).status).toBe("pending_approval");
  model.script([{ text: ["Well."] }]);
  await signIn(bob.sign_in[0].authorize_url, "bob-at-the-shop");
  await waitForCompletion(bob.run_id);
  expect(toolResults()).toEqual(['{"account":"bob-at-the-shop"}']);
});

test.each(["approve", "sign in"])(
  "waits for both a sign-in and an approval of the same step, in the order that starts with: %s",
  async (first) => {
    const { name } = await agent();
    const json = await invoke(name, "ada", ["me", "me", "sell"]);
    expect(json).toMatchObject({
      approval: { tool: `${name}__sell` },
      approvals: [{}],
      waiting_for_sign_in: {},
    });
    const approve = () =>
      owner.post(`/v1/agents/runs/${json.run_id}/approvals/${json.approval.request_id}`, {
        decision: "approve",
      });
    const acts = [approve, () => signIn(json.sign_in.at(-1).authorize_url)];
    if (first !== "approve") acts.reverse();
    await acts[0]!();
    if (first !== "approve")
      await expect
        .poll(async () => (await run(json.run_id)).waiting_for_sign_in, { timeout: 20_000 })
        .toBeNull();
    expect((await run(json.run_id)).status).toBe("pending_approval");
    expect(shop.calls).toEqual([]);
    await acts[1]!();
    await waitForCompletion(json.run_id);
    expect(shop.calls).toHaveLength(3);
  },
);

test("waits again, with the same deadline, when a server requires more scopes than were granted", async () => {
  const { name } = await agent();
  const json = await invoke(name, "ada", ["write"]);
  await signIn(json.sign_in[0].authorize_url);
  const second = async () => (await run(json.run_id)).sign_in.at(-1)?.authorize_url;
  await expect.poll(second, { timeout: 20_000 }).not.toBe(json.sign_in[0].authorize_url);
  // The link is stored before the run is parked.
  await expect
    .poll(async () => (await run(json.run_id)).status, { timeout: 20_000 })
    .toBe("pending_approval");
  const again = await run(json.run_id);
  expect(again).toMatchObject({
    status: "pending_approval",
    waiting_for_sign_in: json.waiting_for_sign_in,
  });
  await signIn(again.sign_in.at(-1).authorize_url);
  await waitForCompletion(json.run_id);
  expect(toolResults()).toEqual(['{"account":"ada-at-the-shop"}']);
});

test("continues a run whose end user signs in before the run is parked", async () => {
  const { name } = await agent();
  const links: string[] = [];
  onKillPoint(async (point) => {
    if (point !== "agent.sign_in.requested") return;
    onKillPoint(undefined);
    const row = await host.app.db
      .selectFrom("agent_events")
      .select("data")
      .where("type", "=", "connection.auth_required")
      .orderBy("at", "desc")
      .executeTakeFirstOrThrow();
    links.push(row.data["authorize_url"] as string);
    await signIn(links[0]!);
  });
  script(name, ["me"]);
  const body = { input: "Go.", end_user_id: "ada", wait_s: 0 };
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, body);
  await waitForCompletion(json.run_id);
  expect(links).toHaveLength(1);
  expect(toolResults()).toEqual(['{"account":"ada-at-the-shop"}']);
});

test("replaces an unusable sign-in link when the run is read", async () => {
  const { name, toolset } = await agent();
  const json = await invoke(name);
  const [{ authorize_url: first }] = json.sign_in;
  // A link that still works is kept.
  expect((await run(json.run_id)).sign_in[0].authorize_url).toBe(first);
  const stranger = await host.person();
  expect((await stranger.get(`/v1/agents/runs/${json.run_id}`)).status).toBe(404);
  await new TestBrowser().get(first);
  const second = (await run(json.run_id)).sign_in[0].authorize_url;
  expect(second).not.toBe(first);
  expect((await run(json.run_id)).sign_in[0].authorize_url).toBe(second);
  await signIn(second);
  await waitForCompletion(json.run_id);
  const links = (await events(json.run_id)).filter(({ type }) => type === "connection.auth_required");
  expect(links).toMatchObject([
    { toolset_id: toolset, end_user_id: "ada", authorize_url: first },
    { toolset_id: toolset, end_user_id: "ada", authorize_url: second },
  ]);
});

test("creates no sign-in link for a toolset that is deleted while the run is read", async () => {
  const { name } = await agent();
  const json = await invoke(name);
  const waits = (await waitRows(json.run_id)).map((wait) => ({ ...wait, toolset_id: "tst_deleted" }));
  const before = (await run(json.run_id)).last_event_id;
  await renewLinks(host.app, json.run_id, waits, []);
  expect((await run(json.run_id)).last_event_id).toBe(before);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
});

test("continues without a toolset that is deleted during the wait", async () => {
  const { name, toolset } = await agent();
  const json = await invoke(name);
  const version = { config: base, promote: ["prod"] };
  expect((await owner.post(`/v1/agents/${name}/versions`, version)).status).toBe(201);
  expect((await owner.call("DELETE", `/v1/agent-toolsets/${toolset}`)).status).toBe(204);
  await waitForCompletion(json.run_id);
  expect(toolResults()).toEqual([expect.stringContaining("does not exist any more")]);
});

test.each([60, 0])(
  "notifies the model if the toolset is deleted during the call, with a wait of %i min",
  async (wait) => {
    const { name, toolset } = await agent({ connections: { wait_minutes: wait } });
    onKillPoint(async (point) => {
      if (point !== "agent.call.began") return;
      onKillPoint(undefined);
      const version = { config: base, promote: ["prod"] };
      expect((await owner.post(`/v1/agents/${name}/versions`, version)).status).toBe(201);
      expect((await owner.call("DELETE", `/v1/agent-toolsets/${toolset}`)).status).toBe(204);
    });
    script(name, ["me"]);
    const body = { input: "Go.", end_user_id: "ada", wait_s: 0 };
    const { json } = await owner.post(`/v1/agents/${name}/invoke`, body);
    await waitForCompletion(json.run_id);
    expect(toolResults()).toEqual([expect.stringContaining("it was deleted during the call")]);
    expect((await events(json.run_id)).map(({ type }) => type)).not.toContain("connection.auth_required");
  },
);

test("excludes the time of a suspension from the deadline of a wait", async () => {
  const { name } = await agent();
  const json = await invoke(name);
  const hold = (since: Date | null) =>
    host.app.db
      .updateTable("workspaces")
      .set({ held_since: since })
      .where("id", "=", owner.workspaceId)
      .execute();
  await hold(new Date());
  try {
    await lapse(json.run_id);
    expect((await run(json.run_id)).status).toBe("pending_approval");
    const held = { workspaceId: owner.workspaceId, ms: 3_600_000 };
    await host.app.db.transaction().execute((tx) => moveSignInDeadlines(tx, held));
  } finally {
    await hold(null);
  }
  const after = await run(json.run_id);
  expect(after.status).toBe("pending_approval");
  expect(Date.parse(after.waiting_for_sign_in.expires_at)).toBeGreaterThan(Date.now() + 3_000_000);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
});

test("erases the wait for a sign-in with its end user", async () => {
  const { name } = await agent();
  const json = await invoke(name, "eve-who-is-erased");
  const { status } = await owner.call("DELETE", `/v1/agents/${name}/end-users/eve-who-is-erased`);
  expect(status).toBe(200);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).status).toBe(404);
  expect(await waitRows(json.run_id)).toEqual([]);
  expect([...(await rowsWith(host.app.db, ["eve-who-is-erased"])).keys()]).toEqual([]);
});

test("shows a chat the sign-in link and the outcome of the wait", async () => {
  const { name, toolset } = await agent();
  script(name, ["me"]);
  const reading = readFrames(`${host.baseUrl}/v1/agents/${name}/invoke?format=ui`, {
    token: owner.token,
    method: "POST",
    body: { input: "Go.", end_user_id: "ada", stream: true },
  });
  const waiting = async () => {
    const { items } = (await owner.get(`/v1/agents/runs?agent=${name}`)).json;
    return items[0]?.status === "pending_approval" ? (items[0].run_id as string) : undefined;
  };
  await expect.poll(waiting, { timeout: 20_000 }).toBeDefined();
  const { sign_in } = await run((await waiting())!);
  await signIn(sign_in[0].authorize_url);
  const { frames } = await reading;
  expect(frames.map(({ data }) => data).filter(({ type }: Json) => type === "data-sign-in")).toMatchObject([
    { id: toolset, data: { toolset_id: toolset, authorize_url: sign_in[0].authorize_url } },
    { id: toolset, data: { toolset_id: toolset, outcome: "connected" } },
  ]);
});
