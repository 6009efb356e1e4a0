/** Questions of MCP servers that a person answers: real servers, the real HTTP API, a real database. */
import { sql } from "kysely";
import { afterEach, expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { agentHost, type Json, modelConfig, type Person } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startEverything, startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { rowsWith } from "#agent/testing/whole-database.ts";
import { makeTeam } from "../../../../test/factories.ts";

const model = await startModelServer();
const server = await startMcpServer();
const everything = await startEverything("streamableHttp");
const everythingBySse = await startEverything("sse");
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const secret = "question-secret-0123";
let made = 0;

const requestedSchema = {
  type: "object",
  properties: {
    city: { type: "string", title: "City", minLength: 2 },
    nights: { type: "integer", minimum: 1, default: 1 },
    room: { type: "string", enum: ["single", "double"] },
    extras: { type: "array", items: { type: "string", enum: ["sea", "sauna"] } },
  },
  required: ["city"],
};

/** Responses to the scripted server's questions, in order. */
let answers: Json[] = [];

const asks = (params: object) => ({ method: "elicitation/create", params: { mode: "form", ...params } });

/** Makes the server send these questions in each call, in sequence. */
function script(...questions: object[]): void {
  answers = [];
  server.call = ({ inputResponses, requestState }) => {
    const turn = Number(requestState ?? 0);
    if (inputResponses) answers.push(inputResponses.question);
    const question = questions[turn];
    if (!question) return { content: [{ type: "text", text: "Booked." }] };
    const inputRequests = { question: asks(question) };
    return { resultType: "input_required", requestState: String(turn + 1), inputRequests };
  };
}

afterEach(() => {
  server.before = undefined;
});
server.generation = "2026-07-28";
server.tools = [
  { name: "book", inputSchema: { type: "object" } },
  { name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } },
];

async function toolset(url = server.url, of: Person = owner): Promise<Json> {
  const body = { name: `set${(made += 1)}`, kind: "mcp", url, auth_secret: secret };
  const { status, json } = await of.post("/v1/agent-toolsets", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function agent(use: object, change: object = {}): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const toolsets = [{ elicitation: "person", ...use }];
  const { status, json } = await owner.post("/v1/agents", {
    name,
    config: { ...config, toolsets, ...change },
  });
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

/** Invokes the agent, whose model makes these calls in one step. Returns the run at its first stop. */
async function invoke(name: string, ...tools: string[]): Promise<Json> {
  const calls = tools.map((tool) => ({ name: tool, arguments: "{}" }));
  model.script(({ messages }) => (messages.at(-1).role === "tool" ? { text: ["Done."] } : { calls }));
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  return json;
}

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;
const decide = (runId: string, requestId: string, body: object, who: Person = owner) =>
  who.post(`/v1/agents/runs/${runId}/approvals/${requestId}`, body);
const lastResult = (): string => model.asked.at(-1).messages.at(-1).content;

async function events(runId: string): Promise<Json[]> {
  const url = `${host.baseUrl}/v1/agents/runs/${runId}/stream`;
  return (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
}

test("returns the question of a call, and sends the server a person's answer together with defaults", async () => {
  script({ message: `Which hotel? ${secret}`, requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  expect(json).toMatchObject({ status: "pending_approval", approvals: [json.approval] });
  expect(json.approval).toEqual({
    request_id: expect.stringMatching(/^apr_/),
    kind: "elicitation",
    tool: `${set.name}__book`,
    arguments: {},
    question: {
      message: "Which hotel? [secret]",
      schema: { ...requestedSchema, additionalProperties: false },
    },
    expires_at: expect.stringMatching(/Z$/),
  });
  const { request_id: id } = json.approval;
  const { items } = (await owner.get("/v1/agents/approvals")).json;
  expect(items[0]).toMatchObject({ request_id: id, kind: "elicitation", question: json.approval.question });
  const news = await host.app.db
    .selectFrom("notifications")
    .select(["title", "body"])
    .where("workspace_id", "=", owner.workspaceId)
    .execute();
  expect(news).toEqual([{ title: expect.stringContaining("question of"), body: expect.any(String) }]);
  expect(JSON.stringify(news)).not.toContain("hotel");

  const wrong = await decide(json.run_id, id, { decision: "approve", content: { city: "B", spy: 1 } });
  expect(wrong).toMatchObject({ status: 400, json: { detail: expect.stringContaining("content: ") } });
  expect((await decide(json.run_id, id, { decision: "approve" })).json.detail).toContain("city");
  const { json: done } = await decide(json.run_id, id, {
    decision: "approve",
    content: { city: "Bremen", extras: ["sea"] },
    wait_s: 20,
  });
  expect(done).toMatchObject({
    status: "completed",
    approvals: [],
    attempts: 1,
    tools_called: [{ status: "completed" }],
  });
  expect(answers).toMatchObject([
    { action: "accept", content: { city: "Bremen", nights: 1, extras: ["sea"] } },
  ]);
  expect(lastResult()).toBe("Booked.");
  // A repeated decision gets the same response. The content of the answer is not stored.
  expect((await decide(json.run_id, id, { decision: "approve" })).status).toBe(200);
  expect((await decide(json.run_id, id, { decision: "deny" })).json.code).toBe("approval_decided");
  const log = await events(json.run_id);
  expect(log.map(({ seq }) => seq)).toEqual(log.map((_, index) => index + 1));
  expect(log.map(({ type }) => type)).toEqual(
    expect.arrayContaining([
      "approval.requested",
      "run.pending_approval",
      "approval.resolved",
      "run.completed",
    ]),
  );
  const ui = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream?format=ui`;
  const parts = (await readFrames(ui, { token: owner.token })).frames.map(({ data }) => data);
  expect(parts.filter(({ type }) => type === "data-question")).toMatchObject([
    { id, data: { request_id: id, question: json.approval.question } },
    { id, data: { request_id: id, outcome: "approved" } },
  ]);
  const { rows } = await sql`select * from agent_approvals where id = ${id}`.execute(host.app.db);
  expect(JSON.stringify([rows, log])).not.toContain("Bremen");
});

test.each([
  [{ decision: "deny" }, "decline", "denied"],
  [{ decision: "cancel" }, "cancel", "cancelled"],
])("sends the server the outcome of the decision %o", async (body, action, outcome) => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { request_id: id } = json.approval;
  expect((await decide(json.run_id, id, { ...body, wait_s: 20 })).json.status).toBe("completed");
  expect(answers).toMatchObject([{ action }]);
  expect(await events(json.run_id)).toContainEqual(
    expect.objectContaining({ type: "approval.resolved", request_id: id, outcome }),
  );
  expect((await decide(json.run_id, id, body)).status).toBe(200);
});

test("rejects a config with a time limit for questions if no person may answer them", async () => {
  const set = await toolset();
  const use = { toolset_id: set.id, elicitation: "decline", elicitation_seconds: 60 };
  const body = { name: "hasty", config: { ...config, toolsets: [use] } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status).toBe(400);
  expect(JSON.stringify(json)).toContain("elicitation_seconds");
});

test("refuses fields in a decision that do not belong to the kind of the approval", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const name = await agent({ toolset_id: set.id, policy: "ask" });
  const { run_id: runId, approval: call } = await invoke(name, `${set.name}__book`);
  const refusalOf = async (id: string, body: object) => (await decide(runId, id, body)).json.detail as string;
  expect(call).toMatchObject({ kind: "call", question: null });
  expect(await refusalOf(call.request_id, { decision: "cancel" })).toContain("decision: ");
  expect(await refusalOf(call.request_id, { decision: "approve", content: {} })).toContain("content: ");
  // An approved call may send a question too.
  await decide(runId, call.request_id, { decision: "approve", wait_s: 20 });
  const { approval: question } = await run(runId);
  expect(question).toMatchObject({ kind: "elicitation" });
  expect(await refusalOf(question.request_id, { decision: "approve", arguments: {} })).toContain(
    "arguments: ",
  );
  expect(await refusalOf(question.request_id, { decision: "deny", reason: "No." })).toContain("reason: ");
  expect(await refusalOf(question.request_id, { decision: "deny", content: {} })).toContain("content: ");
  await decide(runId, question.request_id, { decision: "deny", wait_s: 20 });
  expect(await run(runId)).toMatchObject({ status: "completed" });
});

test("hides a question from other workspaces", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const stranger = await host.person();
  const { request_id: id } = json.approval;
  const answer = { decision: "approve", content: { city: "Bremen" } };
  expect((await decide(json.run_id, id, answer, stranger)).status).toBe(404);
  expect((await stranger.get("/v1/agents/approvals")).json.total).toBe(0);
  expect((await stranger.get(`/v1/agents/runs/${json.run_id}`)).status).toBe(404);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
});

test.each([
  ["streamable HTTP", everything],
  ["SSE", everythingBySse],
])("a person's answer completes the reference server's question over %s", async (_, url) => {
  const set = await toolset(url);
  const name = await agent({ toolset_id: set.id });
  const json = await invoke(name, `${set.name}__trigger-elicitation-request`);
  expect(json).toMatchObject({ status: "pending_approval", approval: { kind: "elicitation" } });
  const { schema } = json.approval.question;
  expect(schema.required).toEqual(["name"]);
  const { request_id: id } = json.approval;
  const content = { name: "Ada" };
  const { json: done } = await decide(json.run_id, id, { decision: "approve", content, wait_s: 20 });
  expect(done.status).toBe("completed");
  expect(lastResult()).toContain("Name: Ada");
});

test("creates a separate question for each of several calls over one connection", async () => {
  const set = await toolset(everything);
  const name = await agent({ toolset_id: set.id });
  const tool = `${set.name}__trigger-elicitation-request`;
  const { run_id: runId } = await invoke(name, tool, tool);
  await expect.poll(async () => (await run(runId)).approvals.length).toBe(2);
  const { approvals, status } = await run(runId);
  expect(status).toBe("pending_approval");
  const calls = (await events_(runId)).filter(({ type }) => type === "approval.requested");
  expect(new Set(calls.map(({ call_id }) => call_id)).size).toBe(2);
  const answer = (n: number, given: string) =>
    decide(runId, approvals[n].request_id, { decision: "approve", content: { name: given } });
  expect((await answer(1, "Bo")).json.status).toBe("pending_approval");
  await answer(0, "Ada");
  await expect.poll(async () => (await run(runId)).status).toBe("completed");
  const results = model.asked
    .at(-1)
    .messages.slice(-2)
    .map(({ content }: Json) => content);
  expect(results[0]).toContain("Name: Ada");
  expect(results[1]).toContain("Name: Bo");
});

/** Returns the events of a run in progress. */
async function events_(runId: string): Promise<Json[]> {
  const { rows } = await sql<Json>`select type, data from agent_events where run_id = ${runId}
    order by seq`.execute(host.app.db);
  return rows.map(({ type, data }) => ({ type, ...data }));
}

const tooDeep = { type: "object", properties: { a: { type: "object", properties: {} } } };
const manyFields = Array.from({ length: 51 }, (_, n) => [`f${n}`, { type: "string" }]);
test.each([
  ["a message over 4 KiB", { message: "x".repeat(4097), requestedSchema }],
  [
    "more than 50 fields",
    { message: "?", requestedSchema: { type: "object", properties: Object.fromEntries(manyFields) } },
  ],
  [
    "a schema over 16 KiB",
    {
      message: "?",
      requestedSchema: {
        type: "object",
        properties: Object.fromEntries(
          Array.from({ length: 20 }, (_, n) => [`f${n}`, { type: "string", description: "x".repeat(1_000) }]),
        ),
      },
    },
  ],
  [
    "a required field that does not exist",
    { message: "?", requestedSchema: { type: "object", properties: {}, required: ["a"] } },
  ],
  [
    "the toolset's secret as a choice",
    {
      message: "?",
      requestedSchema: { type: "object", properties: { a: { type: "string", enum: [secret] } } },
    },
  ],
])("declines a question with %s without showing it to a person", async (_, question) => {
  script(question);
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  expect(json).toMatchObject({ status: "completed", approvals: [] });
  expect(answers).toMatchObject([{ action: "decline" }]);
});

test("fails a call whose question has nested fields, and shows no question to a person", async () => {
  script({ message: "?", requestedSchema: tooDeep });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  expect(json).toMatchObject({ status: "completed", approvals: [] });
  expect(answers).toEqual([]);
});

test("cancels a question at its deadline, and continues the run", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(
    await agent({ toolset_id: set.id, elicitation_seconds: 10 }),
    `${set.name}__book`,
  );
  const { request_id: id } = json.approval;
  await sql`update agent_approvals set expires_at = now() - interval '1 second' where id = ${id}`.execute(
    host.app.db,
  );
  await expect.poll(async () => (await run(json.run_id)).status).toBe("completed");
  expect(answers).toMatchObject([{ action: "cancel" }]);
  const late = await decide(json.run_id, id, { decision: "approve", content: { city: "Bremen" } });
  expect(late).toMatchObject({ status: 410, json: { code: "approval_expired" } });
});

test("excludes the wait for a person's answer from the time limits of the call and the run", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const limits = { max_seconds: 6, tool_timeout_seconds: 3 };
  const json = await invoke(await agent({ toolset_id: set.id }, { limits }), `${set.name}__book`);
  expect(json.status).toBe("pending_approval");
  await new Promise((resolve) => setTimeout(resolve, 6_500));
  const content = { city: "Bremen" };
  const { json: done } = await decide(json.run_id, json.approval.request_id, {
    decision: "approve",
    content,
    wait_s: 20,
  });
  expect(done).toMatchObject({ status: "completed", tools_called: [{ status: "completed" }] });
  const { rows } = await sql<{ ms: number }>`select active_ms as ms from agent_runs
    where id = ${json.run_id}`.execute(host.app.db);
  expect(Number(rows[0]!.ms)).toBeLessThan(6_000);
});

test("cancels the open question of a run that is cancelled", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { json: ended } = await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  expect(ended).toMatchObject({ status: "failed", error_code: "cancelled", approvals: [] });
  const late = await decide(json.run_id, json.approval.request_id, {
    decision: "approve",
    content: { city: "Bremen" },
  });
  expect(late).toMatchObject({ status: 409, json: { code: "approval_decided" } });
  expect(answers).toEqual([]);
});

test("withdraws a call's question when the server closes the call's connection", async () => {
  server.before = ({ body }, response) => {
    if (body?.method !== "tools/call" || !body.params.requestState) return false;
    response.destroy();
    return true;
  };
  script({ message: "Which?", requestedSchema }, { message: "And?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const content = { city: "Bremen" };
  const { json: done } = await decide(json.run_id, json.approval.request_id, {
    decision: "approve",
    content,
    wait_s: 20,
  });
  expect(done).toMatchObject({ status: "completed", approvals: [], tools_called: [{ status: "failed" }] });
});

test("declines all questions of a call after the tenth", async () => {
  script(...Array.from({ length: 11 }, () => ({ message: "Which?", requestedSchema })));
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  let current = json;
  let decided = 0;
  for (; current.approval; decided += 1) {
    const { request_id: id } = current.approval;
    current = (await decide(json.run_id, id, { decision: "cancel", wait_s: 20 })).json;
  }
  expect(decided).toBe(10);
  // Many questions create few notifications.
  const { rows } = await sql`select from notifications where target ->> 'id' = ${json.run_id}`.execute(
    host.app.db,
  );
  expect(rows).toHaveLength(1);
  expect(current.status).toBe("completed");
  expect(answers.slice(0, 10).every(({ action }) => action === "cancel")).toBe(true);
});

test("refuses a second, different answer to a question, and accepts a repetition of the first", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { request_id: id } = json.approval;
  const answer = (content: object) => decide(json.run_id, id, { decision: "approve", content, wait_s: 20 });
  const both = await Promise.all([answer({ city: "Bremen" }), answer({ city: "Kiel" })]);
  const outcomes = both.map(({ status }) => status);
  expect(new Set(outcomes)).toEqual(new Set([200, 409]));
  const [given, other] = both[0]!.status === 200 ? ["Bremen", "Kiel"] : ["Kiel", "Bremen"];
  expect(answers).toMatchObject([{ content: { city: given } }]);
  expect((await answer({ nights: 1, city: given })).status).toBe(200);
  for (const content of [{ city: other }, { city: given, nights: 2 }])
    expect(await answer(content)).toMatchObject({
      status: 409,
      json: {
        code: "approval_decided",
        outcome: "approved",
        detail: expect.stringContaining("other content"),
      },
    });
  expect(await rowsWith(host.app.db, [other!, given!])).toEqual(new Map());
});

test("declines a question that contains the secret with JSON escapes", async () => {
  const quoted = 'quote"secret\\0123';
  script(
    {
      message: "?",
      requestedSchema: { type: "object", properties: { a: { type: "string", enum: [quoted] } } },
    },
    {
      message: "?",
      requestedSchema: { type: "object", properties: { [quoted]: { type: "string" } } },
    },
  );
  const { json: set } = await owner.post("/v1/agent-toolsets", {
    name: `set${(made += 1)}`,
    kind: "mcp",
    url: server.url,
    auth_secret: quoted,
  });
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  expect(json).toMatchObject({ status: "completed", approvals: [] });
  expect(answers).toMatchObject([{ action: "decline" }, { action: "decline" }]);
});

test("accepts fields with the names of inherited object methods", async () => {
  const properties = { constructor: { type: "string" }, toString: { type: "string" } };
  script({
    message: "?",
    requestedSchema: { type: "object", properties, required: ["constructor"] },
  });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { request_id: id } = json.approval;
  const answer = (content: object) => decide(json.run_id, id, { decision: "approve", content, wait_s: 20 });
  expect((await answer({ toString: "x" })).json.detail).toContain('required property "constructor"');
  expect((await answer({ constructor: "McLaren" })).json).toMatchObject({ status: "completed" });
  expect(answers).toEqual([{ action: "accept", content: { constructor: "McLaren" } }]);
});

test("passes no object prototype through a question or an answer", async () => {
  const properties = JSON.parse('{"a": {"type": "string"}, "__proto__": {"type": "string", "default": "x"}}');
  script(
    { message: "?", requestedSchema: { type: "object", properties } },
    { message: "?", requestedSchema: { type: "object", properties: {}, required: ["__proto__"] } },
  );
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { request_id: id, question } = json.approval;
  expect(Object.keys(question.schema.properties)).toEqual(["a"]);
  const hostile = JSON.parse('{"a": "b", "__proto__": "y"}');
  expect((await decide(json.run_id, id, { decision: "approve", content: hostile })).status).toBe(400);
  const content = { a: "b" };
  const { json: done } = await decide(json.run_id, id, {
    decision: "approve",
    content,
    wait_s: 20,
  });
  expect(done.status).toBe("completed");
  expect(JSON.stringify(answers)).toBe('[{"action":"accept","content":{"a":"b"}},{"action":"decline"}]');
});

test("refuses answer content that is too large, too deep, or no object", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const { request_id: id } = json.approval;
  let deep: unknown = "x";
  for (let n = 0; n < 1_000; n += 1) deep = [deep];
  const bad = [
    { city: "x".repeat(1024 ** 2) },
    { city: deep },
    { city: { a: 1 } },
    { city: null },
    [],
    "x",
    null,
  ];
  for (const content of bad) {
    const { status } = await decide(json.run_id, id, { decision: "approve", content });
    expect([400, 413]).toContain(status);
  }
  expect(await run(json.run_id)).toMatchObject({ status: "pending_approval" });
  await decide(json.run_id, id, { decision: "deny", wait_s: 20 });
});

test("deletes the question of an erased end user, and ends the question's call", async () => {
  script({ message: "Which canaryquestion?", requestedSchema });
  const set = await toolset();
  const name = await agent({ toolset_id: set.id });
  const calls = [{ name: `${set.name}__book`, arguments: "{}" }];
  model.script(({ messages }) => (messages.at(-1).role === "tool" ? { text: ["Done."] } : { calls }));
  const body = { input: "Hi", end_user_id: "grace" };
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, body);
  expect(json.status).toBe("pending_approval");
  expect((await owner.call("DELETE", `/v1/agents/${name}/end-users/grace`)).status).toBe(200);
  const late = await decide(json.run_id, json.approval.request_id, {
    decision: "approve",
    content: { city: "Bremen" },
  });
  expect(late.status).toBe(404);
  await expect
    .poll(() => rowsWith(host.app.db, ["canaryquestion", json.approval.request_id]))
    .toEqual(new Map());
  expect(answers).toEqual([]);
});

test("refuses an answer from a viewer of the team, and from a read-only token", async () => {
  script({ message: "Which?", requestedSchema });
  const set = await toolset();
  const json = await invoke(await agent({ toolset_id: set.id }), `${set.name}__book`);
  const viewer = await host.person();
  const members = { [owner.userId]: "owner", [viewer.userId]: "viewer" } as const;
  const team = await makeTeam(host.app.db, members);
  clearActorCache(host.app);
  await sql`update agent_runs set workspace_id = ${team.id} where id = ${json.run_id}`.execute(host.app.db);
  expect((await viewer.get(`/v1/agents/runs/${json.run_id}`)).json.approval).toEqual(json.approval);
  const { request_id: id } = json.approval;
  const answer = { decision: "approve", content: { city: "Bremen" } };
  // A viewer may not write, and a write without the right gets 404 as if the run did not exist.
  expect((await decide(json.run_id, id, answer, viewer)).status).toBe(404);
  const reader = { authorization: `Bearer ${await owner.tokenWith(["agents:read"])}` };
  const path = `/v1/agents/runs/${json.run_id}/approvals/${id}`;
  expect((await owner.call("POST", path, answer, reader)).status).toBe(403);
  expect((await run(json.run_id)).status).toBe("pending_approval");
  await decide(json.run_id, id, { decision: "deny", wait_s: 20 });
  expect(answers).toMatchObject([{ action: "decline" }]);
});
