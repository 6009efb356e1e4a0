/** Model servers that send nothing, or that end a response without a finish reason. */
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { sql } from "kysely";
import { afterAll, expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { callModel } from "./call.ts";
import { ModelFailure } from "./failure.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
let made = 0;

const chunk = (choice: object) =>
  `data: ${JSON.stringify({ id: "c", choices: [{ index: 0, ...choice }] })}\n\n`;
const textChunk = (content: string) => chunk({ delta: { role: "assistant", content }, finish_reason: null });

/** Starts a server. The functions handle its requests in this order. */
async function serve(...turns: ((response: ServerResponse) => void)[]): Promise<string> {
  const server = createServer((request, response) => {
    request.resume();
    request.on("end", () => (turns.length > 1 ? turns.shift()! : turns[0]!)(response));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
}

const nothing = () => {};
const halfOnly = (response: ServerResponse) =>
  void response.writeHead(200, { "content-type": "text/event-stream" }).write(textChunk("Half"));
const whole = (response: ServerResponse) =>
  void response
    .writeHead(200, { "content-type": "text/event-stream" })
    .end(`${textChunk("Whole.")}${chunk({ delta: {}, finish_reason: "stop" })}data: [DONE]\n\n`);

async function agent(url: string, change: object = {}, modelChange: object = {}): Promise<string> {
  const config = await modelConfig(owner, url);
  const name = `agent-${(made += 1)}`;
  const body = { name, config: { ...config, ...change, model: { ...config.model, ...modelChange } } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}
const invoke = async (name: string): Promise<Json> =>
  (await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" })).json;

test("repeats a request whose model sends nothing for too long, and emits an event with the silent seconds", async () => {
  const name = await agent(await serve(nothing, halfOnly, whole), {}, { silence_seconds: 10 });
  // The minimum of a config is higher, so the test sets the value in the database.
  await sql`update agent_versions set config = jsonb_set(config::jsonb, '{model,silence_seconds}', '0.5')::json
    where agent_id = (select id from agents where name = ${name})`.execute(host.app.db);
  const { run_id, ...run } = await invoke(name);
  expect(run).toMatchObject({ status: "completed", output: "Whole." });
  const resets = await host.app.db
    .selectFrom("agent_events")
    .select("data")
    .where("run_id", "=", run_id)
    .where("type", "=", "step.reset")
    .execute();
  expect(resets).toEqual([1, 2].map(() => ({ data: { step: 1, silent_seconds: 0.5 } })));
});

test("fails a call of a silent model with a retryable error", async () => {
  const address = {
    credentialId: "mcr_1",
    provider: "openai_compatible" as const,
    baseUrl: await serve(nothing),
    apiKey: "key",
    id: "model",
  };
  const prompt = [{ role: "user" as const, content: [{ type: "text" as const, text: "Hi" }] }];
  const options = { prompt, abortSignal: AbortSignal.timeout(20_000), silenceSeconds: 0.2 };
  const failure = await callModel(address, fetch, options, () => {}).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(ModelFailure);
  expect(failure).toMatchObject({
    kind: "away",
    silentSeconds: 0.2,
    message: expect.stringContaining("0.2 s"),
  });
});

test.each([9, 301])("rejects a config with silence_seconds of %d", async (silence_seconds) => {
  const config = await modelConfig(owner, model.url);
  const body = {
    name: `agent-${(made += 1)}`,
    config: { ...config, model: { ...config.model, silence_seconds } },
  };
  expect((await owner.post("/v1/agents", body)).status).toBe(400);
});

test("accepts an answer that ends with [DONE] but without a finish reason", async () => {
  model.script([{ raw: `${textChunk("All of it.")}data: [DONE]\n\n` }]);
  expect(await invoke(await agent(model.url))).toMatchObject({
    status: "completed",
    output: "All of it.",
    finish_reason: "stop",
  });
  expect(model.asked).toHaveLength(1);
});

test.each([
  ["a text without [DONE]", textChunk("Half of it.")],
  ["nothing but [DONE]", "data: [DONE]\n\n"],
])("repeats a request after %s", async (_, raw) => {
  model.script([{ raw }, { text: ["Whole."] }]);
  expect(await invoke(await agent(model.url))).toMatchObject({ status: "completed", output: "Whole." });
  expect(model.asked).toHaveLength(2);
});

const schema = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };

test.each(['```json\n{"n": 1}\n```', '```\n{"n": 1}\n```\n', '{"n": 1}'])(
  "with an output schema, accepts the answer %j as JSON",
  async (text) => {
    model.script([{ text: [text] }]);
    const run = await invoke(await agent(model.url, { output: { type: "json_schema", schema } }));
    expect(run).toMatchObject({ status: "completed", output: '{"n": 1}' });
    expect(model.asked).toHaveLength(1);
  },
);

test("without an output schema, keeps a Markdown fence in the answer", async () => {
  model.script([{ text: ["```\n{}\n```"] }]);
  expect(await invoke(await agent(model.url))).toMatchObject({ output: "```\n{}\n```" });
});
