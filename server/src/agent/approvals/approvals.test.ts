import { sql } from "kysely";
import { beforeEach, expect, test } from "vitest";
import { stripExpiredTexts } from "../runs/journal/strip-texts.ts";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";
import { pendingApprovals } from "./approvals.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
let made = 0;

beforeEach(() => {
  shop.asked = [];
  shop.answer = undefined;
});

const tool = (name: string, method: string) => ({
  name,
  description: `Is called ${name}.`,
  method,
  path: `/${name}`,
  parameters: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
});

/**
 * Creates an agent that may call `look`, and needs an approval for `sell` and `buy`. Returns the agent and the names of
 * its tools.
 */
async function agent(approvals: object = {}) {
  made += 1;
  const { json } = await owner.post("/v1/agent-toolsets", {
    name: `shop${made}`,
    kind: "http",
    url: shop.url,
    http_tools: [tool("look", "GET"), tool("sell", "POST"), tool("buy", "POST")],
  });
  const name = `agent-${made}`;
  const use = { toolset_id: json.id, policy: "ask", tools: { look: { policy: "allow" } } };
  const body = { name, config: { ...config, toolsets: [use], approvals } };
  expect(await owner.post("/v1/agents", body)).toMatchObject({ status: 201 });
  const of = (one: string) => `shop${made}__${one}`;
  return { name, toolset: json.id as string, look: of("look"), sell: of("sell"), buy: of("buy") };
}

const call = (name: string, id: unknown) => ({ name, arguments: JSON.stringify({ id }) });
const invoke = async (name: string, body: object = {}) =>
  (await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", ...body })).json;
const run = async (id: string) => (await owner.get(`/v1/agents/runs/${id}`)).json;
const decide = (runId: string, requestId: string, decision: string, person: Person = owner) =>
  person.post(`/v1/agents/runs/${runId}/approvals/${requestId}`, { decision });
const events = async (id: string, query = "") =>
  (
    await readFrames(`${host.baseUrl}/v1/agents/runs/${id}/stream${query}`, { token: owner.token })
  ).frames.map(({ data }) => data);
const paths = () => shop.asked.map(({ path, body }) => `${path}${body}`);

async function waitForOutcome(runId: string): Promise<Json> {
  await host.runs.waitForOutcome(runId, 20_000);
  return run(runId);
}

/** Starts a run that waits for the approval of `sell`. */
async function waiting(approvals: object = {}) {
  const tools = await agent(approvals);
  model.script([{ calls: [call(tools.sell, "7")] }, { text: ["Done."] }]);
  const json = await invoke(tools.name);
  expect(json).toMatchObject({ status: "pending_approval", approval: { tool: tools.sell } });
  return { ...tools, runId: json.run_id as string, requestId: json.approval.request_id as string, json };
}

const approvalRow = (id: string) =>
  host.app.db.selectFrom("agent_approvals").selectAll().where("id", "=", id).executeTakeFirstOrThrow();

/** Sets the approval's deadline into the past. */
const lapse = (id: string) =>
  host.app.db
    .updateTable("agent_approvals")
    .set({ expires_at: new Date(Date.now() - 1) })
    .where("id", "=", id)
    .execute();

test("makes a call only after its approval, with the arguments that the approval showed", async () => {
  const { name, look, sell } = await agent({ expires_in_seconds: 60 });
  model.script([{ calls: [call(sell, "7"), call(look, "a")] }, { text: ["Sold."] }]);
  const json = await invoke(name);
  expect(json).toEqual({
    run_id: expect.stringMatching(/^run_/),
    session_id: expect.stringMatching(/^ses_/),
    session_created: true,
    status: "pending_approval",
    output: null,
    error_code: null,
    error_message: null,
    finish_reason: null,
    output_truncated: false,
    sign_in: [],
    approval: {
      request_id: expect.stringMatching(/^apr_/),
      kind: "call",
      tool: sell,
      arguments: { id: "7" },
      question: null,
      expires_at: expect.stringMatching(/Z$/),
    },
    approvals: [json.approval],
    waiting_for_sign_in: null,
  });
  // The allowed call is made. The call that needs an approval is shown to the model but not made.
  expect(model.asked[0].tools).toHaveLength(3);
  expect(paths()).toEqual(["/api/look?id=a"]);
  const { request_id: requestId } = json.approval;
  const waits = await run(json.run_id);
  expect(waits).toMatchObject({
    status: "pending_approval",
    approval: json.approval,
    tools_called: [{ tool: look, status: "completed" }],
  });
  const decided = await decide(json.run_id, requestId, "approve");
  expect([decided.status, decided.json]).toMatchObject([
    200,
    { run_id: json.run_id, status: expect.stringMatching(/^(queued|running|completed)$/), approval: null },
  ]);
  expect(await waitForOutcome(json.run_id)).toMatchObject({
    status: "completed",
    output: "Sold.",
    approval: null,
    tools_called: [
      { tool: sell, status: "completed" },
      { tool: look, status: "completed" },
    ],
  });
  expect(paths()).toEqual(["/api/look?id=a", '/api/sell{"id":"7"}']);
  expect(model.asked[1].messages.slice(-2).map(({ content }: Json) => content)).toEqual([
    '{"ok":true}',
    '{"ok":true}',
  ]);
  const log = await events(json.run_id);
  expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
  const from = log.findIndex(({ type }) => type === "approval.requested");
  expect(log.slice(from, from + 3)).toMatchObject([
    {
      type: "approval.requested",
      request_id: requestId,
      call_id: expect.stringMatching(/^call_/),
      tool: sell,
      arguments: { id: "7" },
      expires_at: json.approval.expires_at,
    },
    { type: "run.pending_approval" },
    {
      type: "approval.resolved",
      request_id: requestId,
      outcome: "approved",
      by: { kind: "api_token", id: expect.any(String), label: expect.any(String) },
    },
  ]);
});

test("keeps the session of a run that waits for approval, and frees its process and its slot in the plan", async () => {
  const { name, runId, json } = await waiting();
  expect(
    await owner.post(`/v1/agents/${name}/invoke`, { input: "Well?", session_id: json.session_id }),
  ).toMatchObject({ status: 409, json: { code: "approval_pending", run_id: runId } });
  const row = await host.app.db
    .selectFrom("agent_runs")
    .select(["status", "process_id"])
    .where("id", "=", runId)
    .executeTakeFirstOrThrow();
  expect(row).toEqual({ status: "pending_approval", process_id: null });
  // The plan allows ten runs in flight.
  const pro = await host.person({ plan: "pro" });
  await pro.post("/v1/agents", { name: "free", config: await modelConfig(pro, model.url) });
  model.script([{ text: ["Yes."] }]);
  for (let n = 0; n < 10; n += 1)
    expect((await pro.post("/v1/agents/free/invoke", { input: "Hi" })).status).toBe(200);
  await sql`update agent_runs set status = 'pending_approval', finished_at = null
    where workspace_id = ${pro.workspaceId}`.execute(host.app.db);
  expect((await pro.post("/v1/agents/free/invoke", { input: "Hi" })).json).toMatchObject({ output: "Yes." });
});

test("does not make a denied call, and notifies the model of the denial", async () => {
  const { runId, requestId } = await waiting();
  expect((await decide(runId, requestId, "deny")).status).toBe(200);
  expect(await waitForOutcome(runId)).toMatchObject({
    status: "completed",
    tools_called: [{ status: "denied" }],
  });
  expect(paths()).toEqual([]);
  expect(model.asked[1].messages.at(-1).content).toContain("denied");
});

test("sends the reason of a denial to the model, and deletes the reason with the run's text", async () => {
  const { runId, requestId } = await waiting();
  const path = `/v1/agents/runs/${runId}/approvals/${requestId}`;
  const reason = "Too dear; ask for a discount.";
  const unfit = await owner.post(path, { decision: "approve", reason });
  expect(unfit).toMatchObject({ status: 400, json: { code: "invalid_request" } });
  expect((await owner.post(path, { decision: "deny", reason })).status).toBe(200);
  await waitForOutcome(runId);
  expect(model.asked[1].messages.at(-1).content).toBe(`A person denied this call: ${reason}`);
  const findResolved = async (query = "") =>
    (await events(runId, query)).find(
      ({ type }) => type === (query ? "tool-approval-response" : "approval.resolved"),
    );
  expect(await findResolved()).toMatchObject({ outcome: "denied", reason });
  expect(await findResolved("?format=ui")).toMatchObject({ approved: false, reason });
  await sql`update agent_runs set output_expires_at = now() - interval '1 second' where id = ${runId}`.execute(
    host.app.db,
  );
  await stripExpiredTexts(host.app, new Date());
  expect(await findResolved()).not.toHaveProperty("reason");
  expect((await approvalRow(requestId)).decided_by).not.toHaveProperty("reason");
});

test("does not expire an approval while its workspace is suspended, even when the run is read", async () => {
  const { runId, requestId } = await waiting();
  const hold = (since: Date | null) =>
    host.app.db
      .updateTable("workspaces")
      .set({ held_since: since })
      .where("id", "=", owner.workspaceId)
      .execute();
  await hold(new Date());
  try {
    await lapse(requestId);
    expect(await run(runId)).toMatchObject({
      status: "pending_approval",
      approval: { request_id: requestId },
    });
    expect((await approvalRow(requestId)).status).toBe("pending");
    // At this time, the suspension has ended but the deadlines have not moved yet.
    expect((await decide(runId, requestId, "approve")).status).toBe(200);
  } finally {
    await hold(null);
  }
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed" });
});

test("returns the same response for a repeated decision, and refuses a different one", async () => {
  const { runId, requestId } = await waiting();
  const replies = await Promise.all(
    Array.from({ length: 12 }, (_, n) => decide(runId, requestId, n % 2 ? "approve" : "deny")),
  );
  const { status: outcome } = await approvalRow(requestId);
  for (const [n, { status, json }] of replies.entries()) {
    const said = n % 2 ? "approved" : "denied";
    if (said === outcome) expect(status).toBe(200);
    else expect([status, json]).toMatchObject([409, { code: "approval_decided", outcome }]);
  }
  await waitForOutcome(runId);
  expect(shop.asked).toHaveLength(outcome === "approved" ? 1 : 0);
  expect(await decide(runId, requestId, outcome === "approved" ? "approve" : "deny")).toMatchObject({
    status: 200,
    json: { status: "completed" },
  });
  const log = await events(runId);
  expect(log.filter(({ type }) => type === "approval.resolved")).toHaveLength(1);
  const activity = await host.app.db
    .selectFrom("activity")
    .select(["action", "actor_kind", "detail"])
    .where("target_id", "=", runId)
    .execute();
  expect(activity).toMatchObject([{ action: `agent_approval.${outcome}`, actor_kind: "api_token" }]);
});

/** Starts a run that waits for decisions on `count` calls. */
async function several(count: number, approvals: object = {}) {
  const tools = await agent(approvals);
  const { name, sell, buy } = tools;
  const calls = Array.from({ length: count }, (_, n) => call(n % 2 ? buy : sell, String(n)));
  model.script([{ calls }, { text: ["Done."] }]);
  const json = await invoke(name);
  const ids = json.approvals.map(({ request_id }: Json) => request_id) as string[];
  return { ...tools, json, ids, runId: json.run_id as string };
}

test("requests all approvals of a step together, and continues the run after the last decision", async () => {
  const { sell, buy, json, ids, runId } = await several(12);
  expect(json).toMatchObject({ status: "pending_approval", approval: json.approvals[0] });
  expect(json.approvals.map(({ tool, arguments: { id } }: Json) => [tool, id])).toEqual(
    Array.from({ length: 12 }, (_, n) => [n % 2 ? buy : sell, String(n)]),
  );
  const pendingItems = (await owner.get("/v1/agents/approvals")).json.items;
  expect(pendingItems.filter(({ run_id }: Json) => run_id === runId)).toHaveLength(12);
  const inList = (await owner.get(`/v1/agents/runs?session_id=${json.session_id}`)).json.items[0];
  expect(inList.approvals).toEqual(json.approvals);
  // Decides the approvals in reverse order, each with a different token.
  for (const [n, id] of [...ids.entries()].toReversed()) {
    expect((await run(runId)).approvals.map(({ request_id }: Json) => request_id)).toEqual(
      ids.slice(0, n + 1),
    );
    const authorization = `Bearer ${await owner.tokenWith(["agents:invoke"])}`;
    const body = { decision: n === 3 ? "deny" : "approve" };
    const path = `/v1/agents/runs/${runId}/approvals/${id}`;
    expect((await owner.call("POST", path, body, { authorization })).status).toBe(200);
    if (n > 0) expect(paths()).toEqual([]);
  }
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed", output: "Done.", approvals: [] });
  expect(paths().toSorted()).toEqual(
    [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11].map((n) => `/api/${n % 2 ? "buy" : "sell"}{"id":"${n}"}`).toSorted(),
  );
  const told = model.asked[1].messages.filter(({ role }: Json) => role === "tool");
  expect(told.map(({ content }: Json) => content.includes("denied"))).toEqual(
    ids.map((_, index) => index === 3),
  );
  const log = await events(runId);
  const requested = log.filter(({ type }) => type === "approval.requested");
  expect(requested.map(({ request_id }) => request_id)).toEqual(ids);
  expect(log.filter(({ type }) => type === "run.pending_approval")).toMatchObject([
    { request_id: ids[0], request_ids: ids },
  ]);
  expect(log.filter(({ type }) => type === "run.started")).toHaveLength(2);
  const news = await host.app.db
    .selectFrom("notifications")
    .select("title")
    .where(sql<boolean>`target ->> 'id' = ${runId}`)
    .execute();
  expect(news).toEqual([{ title: expect.stringContaining("requests approval for 12 calls") }]);
});

test("continues a run once when many people decide about its approvals at the same moment", async () => {
  const { ids, runId } = await several(8);
  const replies = await Promise.all(ids.map((id) => decide(runId, id, "approve")));
  expect(replies.map(({ status }) => status)).toEqual(ids.map(() => 200));
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed" });
  expect(paths().toSorted()).toHaveLength(8);
  const log = await events(runId);
  expect(log.filter(({ type }) => type === "run.started")).toHaveLength(2);
  expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
});

test.each([
  [
    "deny",
    { status: "completed", tools_called: ["completed", "expired", "expired"].map((status) => ({ status })) },
  ],
  ["fail", { status: "failed", error_code: "approval_expired" }],
])("expires the undecided approvals of a run together, and keeps the decided ones: %s", async (how, to) => {
  const { ids, runId } = await several(3, { on_expire: how });
  await decide(runId, ids[0]!, "approve");
  await host.app.db
    .updateTable("agent_approvals")
    .set({ expires_at: new Date(Date.now() - 1) })
    .where("run_id", "=", runId)
    .where("status", "=", "pending")
    .execute();
  expect((await run(runId)).status).not.toBe("pending_approval");
  expect(await waitForOutcome(runId)).toMatchObject({ ...to, approvals: [] });
  expect(paths()).toEqual(how === "deny" ? ['/api/sell{"id":"0"}'] : []);
  for (const id of ids.slice(1)) expect((await decide(runId, id, "approve")).status).toBe(410);
  const outcomes = (await events(runId)).filter(({ type }) => type === "approval.resolved");
  expect(outcomes.map(({ outcome }) => outcome)).toEqual(["approved", "expired", "expired"]);
});

test.each(["cancel", "end"])("cancels a run's undecided approvals when the run ends: %s", async (how) => {
  const { name, json, ids, runId } = await several(3);
  await decide(runId, ids[1]!, "approve");
  if (how === "cancel") await owner.post(`/v1/agents/runs/${runId}/cancel`);
  else await owner.call("DELETE", `/v1/agents/${name}/sessions/${json.session_id}`);
  expect(await run(runId)).toMatchObject({ status: "failed", approval: null, approvals: [] });
  const outcomes = (await events(runId)).filter(({ type }) => type === "approval.resolved");
  expect(outcomes.map(({ request_id, outcome }) => [request_id, outcome])).toEqual([
    [ids[1], "approved"],
    [ids[0], "cancelled"],
    [ids[2], "cancelled"],
  ]);
  expect((await decide(runId, ids[1]!, "approve")).status).toBe(200);
  expect((await decide(runId, ids[2]!, "approve")).json).toMatchObject({ outcome: "cancelled" });
  expect(paths()).toEqual([]);
});

test("requests cancelled approvals again when the run is resumed, and keeps the decided ones", async () => {
  const { ids, runId } = await several(3);
  await decide(runId, ids[1]!, "approve");
  await owner.post(`/v1/agents/runs/${runId}/cancel`);
  expect((await owner.post(`/v1/agents/runs/${runId}/resume`)).status).toBe(200);
  await host.runs.waitForOutcome(runId, 20_000);
  const { approvals } = await run(runId);
  expect(approvals.map(({ arguments: { id } }: Json) => id)).toEqual(["0", "2"]);
  for (const { request_id } of approvals) await decide(runId, request_id, "deny");
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed" });
  expect(paths()).toEqual(['/api/buy{"id":"1"}']);
});

const approve = (runId: string, requestId: string, body: object = {}, person: Person = owner) =>
  person.post(`/v1/agents/runs/${runId}/approvals/${requestId}`, { decision: "approve", ...body });

test("makes an approved call with changed arguments, and sends them to the model", async () => {
  const { runId, requestId } = await waiting();
  const changed = { id: "8", note: "half of it" };
  const stranger = await host.person();
  expect((await approve(runId, requestId, { arguments: changed }, stranger)).status).toBe(404);
  expect((await approve(runId, requestId, { arguments: changed })).status).toBe(200);
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed", output: "Done." });
  expect(shop.asked.map(({ body }) => JSON.parse(body) as Json)).toEqual([changed]);
  expect(model.asked[1].messages.at(-1).content).toBe(
    `A person changed the arguments of this call and approved it. It was made with: ${JSON.stringify(changed)}\n\n{"ok":true}`,
  );
  // The journal has both versions of the arguments.
  const journal = await host.app.db
    .selectFrom("agent_tool_calls")
    .innerJoin("agent_approvals", "agent_approvals.call_id", "agent_tool_calls.id")
    .select(["agent_tool_calls.arguments as requested", "approved_arguments", "parameters"])
    .where("agent_tool_calls.run_id", "=", runId)
    .execute();
  expect(journal).toEqual([{ requested: { id: "7" }, approved_arguments: changed, parameters: null }]);
  const log = await events(runId);
  expect(log.find(({ type }) => type === "approval.resolved")).toMatchObject({ arguments: changed });
  expect(log.find(({ type }) => type === "tool.completed").result_preview).toBe('{"ok":true}');
  const activity = await host.app.db
    .selectFrom("activity")
    .select("detail")
    .where("target_id", "=", runId)
    .executeTakeFirstOrThrow();
  expect(activity.detail).toMatchObject({ arguments_changed: true });
  expect(JSON.stringify(activity)).not.toContain("half of it");
  // A decision with the same arguments is a repetition. A decision with other arguments is refused.
  expect((await approve(runId, requestId, { arguments: changed })).status).toBe(200);
  for (const other of [{}, { arguments: { id: "9" } }])
    expect(await approve(runId, requestId, other)).toMatchObject({
      status: 409,
      json: { code: "approval_decided", outcome: "approved" },
    });
  await stripExpiredTexts(host.app, new Date(Date.now() + 3_700_000));
  expect(await approvalRow(requestId)).toMatchObject({ arguments: null, approved_arguments: null });
  expect(JSON.stringify(await events(runId))).not.toContain("half of it");
});

test("refuses changed arguments that do not fit the tool's schema", async () => {
  const { sell, runId, requestId } = await waiting();
  const unfit = await approve(runId, requestId, { arguments: { id: 8 } });
  expect([unfit.status, unfit.json]).toMatchObject([
    400,
    { code: "invalid_request", detail: expect.stringContaining(`do not fit the schema of ${sell}`) },
  ]);
  expect(unfit.json.detail).toMatch(/^arguments: .*leave `arguments` out/);
  const long = await approve(runId, requestId, { arguments: { id: "x".repeat(300_000) } });
  expect([long.status, long.json.detail]).toMatchObject([400, expect.stringContaining("256 KiB")]);
  const path = `/v1/agents/runs/${runId}/approvals/${requestId}`;
  expect((await owner.post(path, { decision: "deny", arguments: { id: "8" } })).status).toBe(400);
  expect((await approvalRow(requestId)).status).toBe("pending");
  // The requested arguments, sent back unchanged, count as no change.
  expect((await approve(runId, requestId, { arguments: { id: "7" } })).status).toBe(200);
  await waitForOutcome(runId);
  expect((await approvalRow(requestId)).approved_arguments).toBeNull();
  expect(model.asked[1].messages.at(-1).content).toBe('{"ok":true}');
});

test("returns the run when it ends or waits again, if a decision sets wait_s", async () => {
  const { ids, runId } = await several(2);
  const first = await approve(runId, ids[0]!, { wait_s: 20 });
  // The second approval is pending, so the run waits again and the response comes at once.
  expect(first).toMatchObject({
    status: 200,
    json: { status: "pending_approval", approvals: [{ request_id: ids[1] }] },
  });
  const last = await approve(runId, ids[1]!, { wait_s: 20 });
  expect(last).toMatchObject({ status: 200, json: { status: "completed", output: "Done." } });
  expect((await approve(runId, ids[1]!, { wait_s: 301 })).status).toBe(400);
});

test("requests no approval for a call with invalid arguments", async () => {
  const { name, sell } = await agent();
  model.script([{ calls: [call(sell, 7)] }, { text: ["Oh."] }]);
  expect(await invoke(name)).toMatchObject({ status: "completed", approval: null });
  expect(model.asked[1].messages.at(-1).content).toContain("arguments do not fit");
});

test.each([
  ["deny", { status: "completed", output: "Done.", tools_called: [{ status: "expired" }] }],
  ["fail", { status: "failed", error_code: "approval_expired", tools_called: [] }],
])("does not make a call whose approval expires: %s", async (onExpire, expected) => {
  const { runId, requestId } = await waiting({ on_expire: onExpire });
  await lapse(requestId);
  // A read expires the approval, unless the sweep was faster.
  expect((await run(runId)).status).not.toBe("pending_approval");
  expect(await waitForOutcome(runId)).toMatchObject(expected);
  expect(await decide(runId, requestId, "approve")).toMatchObject({
    status: 410,
    json: { code: "approval_expired" },
  });
  expect(shop.asked).toEqual([]);
  expect(await approvalRow(requestId)).toMatchObject({ status: "expired", decided_by: null });
  const log = await events(runId);
  expect(log.filter(({ type }) => type === "approval.resolved")).toMatchObject([
    { outcome: "expired", by: null },
  ]);
});

test("refuses a late decision and continues the run; the sweep expires approvals without a decision", async () => {
  const { runId, requestId } = await waiting();
  await lapse(requestId);
  expect(await decide(runId, requestId, "approve")).toMatchObject({ status: 410 });
  expect(await waitForOutcome(runId)).toMatchObject({ tools_called: [{ status: "expired" }] });
  const other = await waiting();
  await lapse(other.requestId);
  await expect
    .poll(async () => (await approvalRow(other.requestId)).status, { timeout: 10_000 })
    .toBe("expired");
  expect(await waitForOutcome(other.runId)).toMatchObject({ status: "completed" });
});

test.each(["cancel", "end"])("creates no approval for a run that has ended: %s", async (how) => {
  const { name, runId, requestId, json } = await waiting();
  if (how === "cancel") await owner.post(`/v1/agents/runs/${runId}/cancel`);
  else await owner.call("DELETE", `/v1/agents/${name}/sessions/${json.session_id}`);
  expect(await run(runId)).toMatchObject({
    status: "failed",
    error_code: how === "cancel" ? "cancelled" : "session_ended",
    approval: null,
  });
  expect(await decide(runId, requestId, "approve")).toMatchObject({
    status: 409,
    json: { code: "approval_decided", outcome: "cancelled" },
  });
  expect(shop.asked).toEqual([]);
  expect((await events(runId)).slice(-2)).toMatchObject([
    { type: "approval.resolved", outcome: "cancelled", by: null },
    { type: "run.failed" },
  ]);
});

test("allows a decision only to callers with access to the run, and returns 404 for an unknown approval", async () => {
  const { runId, requestId } = await waiting();
  const stranger = await host.person();
  expect(await decide(runId, requestId, "approve", stranger)).toMatchObject({
    status: 404,
    json: { code: "run_not_found" },
  });
  expect(await decide(runId, "apr_doesnotexist", "approve")).toMatchObject({
    status: 404,
    json: { code: "approval_not_found" },
  });
  const other = await waiting();
  expect((await decide(runId, other.requestId, "approve")).status).toBe(404);
  expect((await decide(runId, requestId, "maybe")).status).toBe(400);
  expect((await approvalRow(requestId)).status).toBe("pending");
});

test("shows a pending approval to the owner in a list, in a notification and in the workspace's snapshot", async () => {
  const { name, sell, runId, requestId, json } = await waiting();
  const { json: listed } = await owner.get("/v1/agents/approvals");
  expect(listed.total).toBe(listed.items.length);
  expect(listed.items[0]).toEqual({
    request_id: requestId,
    run_id: runId,
    session_id: json.session_id,
    end_user_id: null,
    agent: name,
    call_id: expect.stringMatching(/^call_/),
    kind: "call",
    tool: sell,
    arguments: { id: "7" },
    question: null,
    status: "pending",
    created_at: expect.stringMatching(/Z$/),
    expires_at: json.approval.expires_at,
  });
  expect((await (await host.person()).get("/v1/agents/approvals")).json).toEqual({ items: [], total: 0 });
  const beside = await pendingApprovals(host.app.db, owner.workspaceId, 1);
  expect(beside).toMatchObject({
    items: [{ request_id: requestId, run_id: runId, agent: name, tool: sell }],
    total: listed.total,
  });
  const news = await host.app.db
    .selectFrom("notifications")
    .selectAll()
    .where("workspace_id", "=", owner.workspaceId)
    .orderBy("created_at", "desc")
    .executeTakeFirstOrThrow();
  expect(news).toMatchObject({ kind: "approval_pending", title: expect.stringContaining(name) });
  // Notifications outlive the run's text, so they contain no arguments.
  expect(JSON.stringify(news)).not.toContain('"7"');
  await decide(runId, requestId, "deny");
  const after = (await owner.get("/v1/agents/approvals")).json;
  expect(after.items.map(({ request_id }: Json) => request_id)).not.toContain(requestId);
  // The run must end first, so that it does not use the script of the next test.
  await waitForOutcome(runId);
});

test("shows long arguments of a call in the run, and omits them from the list of runs", async () => {
  const { name, sell } = await agent();
  const id = "x".repeat(20_000);
  model.script([{ calls: [call(sell, id)] }, { text: ["Done."] }]);
  const json = await invoke(name);
  expect(json.approval.arguments).toEqual({ id });
  const { items } = (await owner.get("/v1/agents/approvals")).json;
  expect(items[0]).toMatchObject({ run_id: json.run_id, arguments: null });
});

test("omits arguments beyond a total of 16 KiB per run from a list of runs", async () => {
  const { name, sell } = await agent();
  const long = ["x", "y"].map((letter) => letter.repeat(10_000));
  model.script([{ calls: long.map((id) => call(sell, id)) }, { text: ["Done."] }]);
  const json = await invoke(name);
  const argumentsOf = ({ approvals }: Json) => approvals.map((one: Json) => one.arguments?.id ?? null);
  expect(argumentsOf(await run(json.run_id))).toEqual(long);
  const { items } = (await owner.get(`/v1/agents/runs?session_id=${json.session_id}`)).json;
  expect(argumentsOf(items[0])).toEqual([long[0], null]);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
});

test("keeps the event stream of a waiting run open, and sends later events after the decision", async () => {
  const { name, sell } = await agent();
  model.script([{ calls: [call(sell, "7")] }, { text: ["Done."] }]);
  const url = `${host.baseUrl}/v1/agents/${name}/invoke`;
  const reading = readFrames(url, {
    token: owner.token,
    method: "POST",
    body: { input: "Hi", stream: true },
  });
  const listPending = async () => (await owner.get("/v1/agents/approvals")).json.items;
  await expect.poll(async () => (await listPending())[0]?.tool).toBe(sell);
  const [{ run_id, request_id }] = await listPending();
  await decide(run_id, request_id, "approve");
  const { frames } = await reading;
  expect(frames.map(({ id }) => Number(id))).toEqual(frames.map((_, index) => index + 1));
  expect(frames.map(({ event }) => event)).toContain("run.pending_approval");
  expect(frames.at(-1)?.event).toBe("run.completed");
});

test("makes no call if its toolset was deleted during the wait for approval, and reports the reason", async () => {
  const { name, toolset, runId, requestId } = await waiting();
  await owner.post(`/v1/agents/${name}/versions`, { config, promote: ["prod"] });
  expect((await owner.call("DELETE", `/v1/agent-toolsets/${toolset}`)).status).toBe(204);
  await decide(runId, requestId, "approve");
  expect(await waitForOutcome(runId)).toMatchObject({
    status: "completed",
    tools_called: [{ status: "failed" }],
  });
  expect(model.asked[1].messages.at(-1).content).toContain("does not exist any more");
  expect(shop.asked).toEqual([]);
});

test("does not make an approved call whose tool was denied before the decision", async () => {
  const { name, toolset, sell } = await agent();
  const use = { toolset_id: toolset };
  await owner.call("PATCH", `/v1/agent-toolsets/${toolset}`, { tool_overrides: { sell: { policy: "ask" } } });
  await owner.post(`/v1/agents/${name}/versions`, {
    config: { ...config, toolsets: [use] },
    promote: ["prod"],
  });
  model.script([{ calls: [call(sell, "7")] }, { text: ["Done."] }]);
  const json = await invoke(name);
  expect(json.status).toBe("pending_approval");
  await owner.call("PATCH", `/v1/agent-toolsets/${toolset}`, {
    tool_overrides: { sell: { policy: "deny" } },
  });
  await decide(json.run_id, json.approval.request_id, "approve");
  expect(await waitForOutcome(json.run_id)).toMatchObject({ tools_called: [{ status: "denied" }] });
  expect(shop.asked).toEqual([]);
});

test("excludes the wait for a person's decision from the run's time limit", async () => {
  const { runId, requestId } = await waiting();
  // The update makes the run an hour old. The config's time limit is fifteen minutes.
  await sql`update agent_runs set created_at = created_at - interval '1 hour',
    started_at = started_at - interval '1 hour' where id = ${runId}`.execute(host.app.db);
  await decide(runId, requestId, "approve");
  expect(await waitForOutcome(runId)).toMatchObject({ status: "completed" });
  const { rows } = await sql<{ ms: number }>`select active_ms as ms from agent_runs
    where id = ${runId}`.execute(host.app.db);
  expect(rows[0]!.ms).toBeLessThan(900_000);
});

test("deletes the arguments of a call with the run's text, an hour after the run's end", async () => {
  const { runId, requestId } = await waiting();
  await decide(runId, requestId, "approve");
  await waitForOutcome(runId);
  await stripExpiredTexts(host.app, new Date(Date.now() + 3_700_000));
  expect(await approvalRow(requestId)).toMatchObject({ status: "approved", arguments: null });
  const asked = (await events(runId)).find(({ type }) => type === "approval.requested");
  expect(asked).toMatchObject({ request_id: requestId, expired: true });
  expect(asked.arguments).toBeUndefined();
});
