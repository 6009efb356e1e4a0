import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeEach, expect, test } from "vitest";
import { endFromOutside } from "../runs/journal/end-run.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";
import { SpanSender } from "./sender.ts";
import { parseTraceparent, traceOf } from "./traceparent.ts";

/** A collector that accepts OTLP as JSON over HTTP. */
const received: { headers: Json; body: Json }[] = [];
let refusals: number[] = [];
const collector = createServer((request, response: ServerResponse) => {
  let body = "";
  request.setEncoding("utf8");
  request.on("data", (piece: string) => (body += piece));
  request.on("end", () => {
    const refusal = refusals.shift();
    if (refusal !== undefined) return response.writeHead(refusal).end();
    if (request.url !== "/otlp/v1/traces") return response.writeHead(404).end();
    received.push({ headers: request.headers, body: JSON.parse(body) });
    return response.writeHead(200, { "content-type": "application/json" }).end("{}");
  });
});
await once(collector.listen(0, "127.0.0.1"), "listening");
afterAll(() => {
  collector.closeAllConnections();
  collector.close();
});
const endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}/otlp`;

const model = await startModelServer();
const tools = await startToolServer();
const settings = { otlpEndpoint: endpoint, otlpHeaders: "authorization=Basic abc=,x-team=a" };
const host = await agentHost({ config: settings });
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const caller = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
let made = 0;

beforeEach(() => {
  received.length = 0;
  tools.asked = [];
  refusals = [];
});

async function agent(): Promise<string> {
  made += 1;
  const toolset = await owner.post("/v1/agent-toolsets", {
    name: `set${made}`,
    kind: "http",
    url: tools.url,
    http_tools: [
      { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
    ],
  });
  const { json } = await owner.post("/v1/agents", {
    name: `agent-${made}`,
    config: { ...config, toolsets: [{ toolset_id: toolset.json.id }] },
  });
  return json.name as string;
}

const spans = (): Json[] =>
  received.flatMap(({ body }) => body.resourceSpans[0].scopeSpans.flatMap((scope: Json) => scope.spans));
const attributesOf = (span: Json): Json =>
  Object.fromEntries(span.attributes.map(({ key, value }: Json) => [key, Object.values(value)[0]]));
async function spansOf(count: number): Promise<Json[]> {
  while (spans().length < count) await sleep(20);
  return spans();
}
const invoke = async (name: string, traceparent?: string) =>
  (
    await owner.call(
      "POST",
      `/v1/agents/${name}/invoke`,
      { input: "A word of the caller's." },
      traceparent === undefined ? {} : { traceparent },
    )
  ).json;

test("exports a run as a trace with spans for the agent, its model calls and its tool calls", async () => {
  const name = await agent();
  const usage = { prompt_tokens: 21, completion_tokens: 4 };
  model.script([
    { calls: [{ name: `set${made}__find`, arguments: "{}" }], usage },
    { text: ["Done."], usage },
  ]);
  const run = await invoke(name, caller);
  const all = await spansOf(4);
  expect(received[0]!.headers).toMatchObject({ authorization: "Basic abc=", "x-team": "a" });
  expect(received[0]!.body.resourceSpans[0].resource.attributes).toContainEqual({
    key: "service.name",
    value: { stringValue: "kontor" },
  });
  const root = all.find((span) => span.name === `invoke_agent ${name}`);
  expect(root).toMatchObject({
    traceId: "0123456789abcdef0123456789abcdef",
    parentSpanId: "0123456789abcdef",
    kind: 1,
    status: {},
  });
  expect(attributesOf(root)).toMatchObject({
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": name,
    "gen_ai.agent.id": expect.stringMatching(/^agt_/),
    "gen_ai.conversation.id": run.session_id,
    "gen_ai.provider.name": "openai_compatible",
    "gen_ai.request.model": "scripted",
    "gen_ai.usage.input_tokens": "42",
    "gen_ai.usage.output_tokens": "8",
    "kontor.run.id": run.run_id,
  });
  const children = all.filter((span) => span !== root);
  expect(children.map(({ traceId, parentSpanId }) => [traceId, parentSpanId])).toEqual(
    children.map(() => [root.traceId, root.spanId]),
  );
  expect(new Set(all.map(({ spanId }) => spanId)).size).toBe(4);
  expect(children.map((span) => span.name as string).toSorted()).toEqual([
    "chat scripted",
    "chat scripted",
    `execute_tool set${made}__find`,
  ]);
  const chats = children.filter(({ kind }) => kind === 3);
  expect(chats.map((span) => attributesOf(span))).toMatchObject([
    { "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": "21" },
    { "gen_ai.response.finish_reasons": { values: [{ stringValue: "stop" }] } },
  ]);
  const tool = children.find((span) => span.name.startsWith("execute_tool"));
  expect(attributesOf(tool)).toMatchObject({
    "gen_ai.tool.name": `set${made}__find`,
    "gen_ai.tool.call.id": expect.stringMatching(/^call_/),
  });
  // The tool's server gets the trace header.
  expect(tools.asked[0]!.headers["traceparent"]).toBe(`00-${root.traceId}-${tool.spanId}-01`);
  for (const span of all) {
    expect(BigInt(span.endTimeUnixNano) >= BigInt(span.startTimeUnixNano)).toBe(true);
    expect(span.spanId).toMatch(/^[0-9a-f]{16}$/);
  }
});

test("passes the caller's traceparent on even without sampling or a collector", async () => {
  const plain = await agentHost();
  const unsampled = caller.replace(/01$/, "00");
  for (const [one, header] of [
    [host, unsampled],
    [plain, caller],
  ] as const) {
    const person = await one.person();
    const toolset = await person.post("/v1/agent-toolsets", {
      name: "set",
      kind: "http",
      url: tools.url,
      http_tools: [
        { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
      ],
    });
    const { json } = await person.post("/v1/agents", {
      name: "passing-on",
      config: {
        ...(await modelConfig(person, model.url)),
        toolsets: [{ toolset_id: toolset.json.id }],
      },
    });
    model.script([{ calls: [{ name: "set__find", arguments: "{}" }] }, { text: ["Done."] }]);
    await person.call("POST", `/v1/agents/${json.name}/invoke`, { input: "Hi" }, { traceparent: header });
    expect(tools.asked.at(-1)!.headers["traceparent"]).toBe(header);
  }
  expect(spans()).toEqual([]);
});

/** Returns all root spans of an agent. The span of a later run has arrived, so no further span can follow. */
async function rootsOf(name: string): Promise<Json[]> {
  const later = await agent();
  const rootsNamed = (wanted: string) => spans().filter((span) => span.name === `invoke_agent ${wanted}`);
  model.script([{ text: ["Done."] }]);
  await invoke(later);
  while (rootsNamed(later).length === 0) await sleep(20);
  return rootsNamed(name);
}

/** Requests and sweeps that notice an expired approval. */
const finders: Record<string, (run: Json) => Promise<unknown>> = {
  "a decision": (run) =>
    owner.post(`/v1/agents/runs/${run.run_id}/approvals/${run.approval.request_id}`, { decision: "approve" }),
  "a read": (run) => owner.get(`/v1/agents/runs/${run.run_id}`),
  "a poll": async ({ run_id }) => {
    const status = async () =>
      (
        await host.app.db
          .selectFrom("agent_runs")
          .select("status")
          .where("id", "=", run_id)
          .executeTakeFirst()
      )?.status;
    await expect.poll(status, { timeout: 10_000 }).toBe("failed");
  },
};

test.each(Object.entries(finders))(
  "exports one root span for a run that %s ends after its approval expired",
  async (_, find) => {
    made += 1;
    const name = `late-${made}`;
    const toolset = await owner.post("/v1/agent-toolsets", {
      name: `late${made}`,
      kind: "http",
      url: tools.url,
      http_tools: [
        {
          name: "sell",
          description: "Sells.",
          method: "POST",
          path: "/sell",
          parameters: { type: "object" },
        },
      ],
    });
    await owner.post("/v1/agents", {
      name,
      config: {
        ...config,
        toolsets: [{ toolset_id: toolset.json.id, policy: "ask" }],
        approvals: { on_expire: "fail" },
      },
    });
    model.script([{ calls: [{ name: `late${made}__sell`, arguments: "{}" }] }]);
    const run = await invoke(name);
    await host.app.db
      .updateTable("agent_approvals")
      .set({ expires_at: new Date(Date.now() - 1) })
      .where("id", "=", run.approval.request_id)
      .execute();
    await find(run);
    expect((await owner.get(`/v1/agents/runs/${run.run_id}`)).json.error_code).toBe("approval_expired");
    // If the run is cancelled later and its session ends, no second span is exported.
    await owner.post(`/v1/agents/runs/${run.run_id}/cancel`);
    await owner.call("DELETE", `/v1/agents/${name}/sessions/${run.session_id}`);
    const roots = await rootsOf(name);
    expect(roots).toHaveLength(1);
    expect(attributesOf(roots[0])["error.type"]).toBe("approval_expired");
  },
);

test("exports one root span for a run that another process ends while the run executes", async () => {
  const other = new RunExecutor(host.app, { pauseMs: 5, gatherMs: 20 });
  await other.start();
  try {
    const name = await agent();
    const answers = Promise.withResolvers<void>();
    model.script([{ until: answers.promise }]);
    const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", wait_s: 0 });
    while (model.asked.length === 0) await sleep(10);
    const failure = { code: "cancelled", message: "The run was cancelled." } as const;
    await host.app.db
      .transaction()
      .execute((tx) => endFromOutside(tx, json.run_id, failure, host.app.clock.now()));
    other.abort(json.run_id);
    answers.resolve();
    // The executing process notices that it lost its claim when it releases the run.
    await spansOf(2);
    expect(await rootsOf(name)).toHaveLength(1);
  } finally {
    await other.stop();
  }
});

test("exports no texts of models and tools by default", async () => {
  const name = await agent();
  model.script([{ text: ["A word of the model's."] }]);
  await invoke(name);
  await spansOf(2);
  expect(JSON.stringify(received)).not.toMatch(/A word of|a-key-of-the-model/);
});

test("exports a failure with its reason, and a span for each failed attempt", async () => {
  const name = await agent();
  model.script([{ status: 503 }, { status: 400, error: "no such model" }]);
  await invoke(name);
  const all = await spansOf(3);
  expect(all.filter(({ kind }) => kind === 3).map(({ status }) => status)).toEqual([
    { code: 2, message: "overloaded" },
    { code: 2, message: "refused" },
  ]);
  const root = all.find((span) => span.name === `invoke_agent ${name}`);
  expect(attributesOf(root)["error.type"]).toBe("model_error");
});

test("ends the spans of a cancelled run", async () => {
  const name = await agent();
  model.script([{ until: new Promise(() => {}) }]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", wait_s: 0 });
  while (model.asked.length === 0) await sleep(10);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  const all = await spansOf(2);
  expect(all.map((span) => attributesOf(span)["error.type"])).toEqual(["cancelled", "cancelled"]);
});

test("continues the trace of a run that another process takes over", async () => {
  const name = await agent();
  model.script([{ until: new Promise(() => {}) }]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", wait_s: 0 });
  while (model.asked.length === 0) await sleep(10);
  await host.runs.stop();
  model.script([{ text: ["Done."] }]);
  const next = new RunExecutor(host.app, { pauseMs: 5, gatherMs: 20 });
  await next.start();
  try {
    await next.waitForOutcome(json.run_id, 10_000);
    const all = await spansOf(3);
    expect(new Set(all.map(({ traceId }) => traceId))).toEqual(
      new Set([traceOf({ id: json.run_id, traceparent: null }).traceId]),
    );
    expect(all.filter(({ parentSpanId }) => parentSpanId === undefined)).toMatchObject([
      { name: `invoke_agent ${name}` },
    ]);
  } finally {
    await next.stop();
  }
});

test("exports no unsampled run, and exports other runs with their texts if the content setting is on", async () => {
  const other = await agentHost({ config: { ...settings, otlpContent: "on" } });
  const person = await other.person();
  const { json } = await person.post("/v1/agents", {
    name: "quiet",
    config: await modelConfig(person, model.url),
  });
  model.script([{ text: ["A word of the model's."] }]);
  const unsampled = caller.replace(/01$/, "00");
  await person.call("POST", `/v1/agents/${json.name}/invoke`, { input: "Hi" }, { traceparent: unsampled });
  // The server exports a sampled run with its texts.
  await person.post(`/v1/agents/${json.name}/invoke`, { input: "A word of the caller's." });
  const all = await spansOf(2);
  expect(all.map(({ traceId }) => traceId)).not.toContain("0123456789abcdef0123456789abcdef");
  const chat = attributesOf(all.find(({ kind }) => kind === 3));
  expect(JSON.parse(chat["gen_ai.input.messages"])).toEqual([
    { role: "user", parts: [{ type: "text", content: "A word of the caller's." }] },
  ]);
  expect(JSON.parse(chat["gen_ai.output.messages"])).toEqual([
    {
      role: "assistant",
      parts: [{ type: "text", content: "A word of the model's." }],
      finish_reason: "stop",
    },
  ]);
});

const span = {
  traceId: "0".repeat(31) + "1",
  spanId: "0".repeat(15) + "1",
  parentId: null,
  name: "one",
  kind: "internal" as const,
  startedAt: new Date(1),
  endedAt: new Date(2),
  attributes: {},
};
const to = { endpoint, headers: {}, resource: {} };

test("sends spans again to a busy collector, not after a rejection, and drops spans when none is reachable", async () => {
  const warnings: unknown[] = [];
  const log = { warn: (fields: unknown) => warnings.push(fields) } as never;
  refusals = [503];
  const busy = new SpanSender(to, log, { pauseMs: 5 });
  busy.add(span);
  await busy.close();
  expect(spans()).toMatchObject([{ startTimeUnixNano: "1000000", endTimeUnixNano: "2000000" }]);
  expect(warnings).toEqual([]);
  refusals = [400];
  const refused = new SpanSender(to, log, { pauseMs: 5 });
  refused.add(span);
  await refused.close();
  const away = new SpanSender({ ...to, endpoint: "http://127.0.0.1:9" }, log, { pauseMs: 5 });
  for (let count = 0; count < 5000; count += 1) away.add(span);
  await away.close();
  expect(warnings).toMatchObject([
    { spans: 1, why: "the collector returned 400" },
    ...Array.from({ length: 16 }, () => ({ why: expect.stringContaining("can't be reached") })),
  ]);
  expect(warnings.slice(1).reduce((sum: number, one) => sum + (one as Json).spans, 0)).toBe(5000);
});

test.each([
  [caller, caller],
  ["01-0123456789abcdef0123456789abcdef-0123456789abcdef-00-more", caller.replace(/01$/, "00")],
  [`${caller}-more`, undefined],
  [caller.replace(/^00/, "ff"), undefined],
  ["00-00000000000000000000000000000000-0123456789abcdef-01", undefined],
  ["00-0123456789abcdef0123456789abcdef-0000000000000000-01", undefined],
  [caller.toUpperCase(), undefined],
  ["", undefined],
  [undefined, undefined],
])("parses the header %s as %s", (header, kept) => {
  expect(parseTraceparent(header)).toBe(kept);
});
