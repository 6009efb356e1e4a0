/** Conversations that a model rejects as too long. */
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
let made = 0;

async function agent(change: object = {}): Promise<string> {
  const body = { name: `agent-${(made += 1)}`, config: { ...config, ...change } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json.name as string;
}

const messages = Array.from({ length: 8 }, (_, n) => ({
  role: n % 2 === 0 ? "user" : "assistant",
  content: `${n} ${"x".repeat(800)}`,
}));
const ask = (name: string, body: object = {}) =>
  owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", messages, ...body });
const typesOf = async (runId: string) =>
  (await readFrames(`${host.baseUrl}/v1/agents/runs/${runId}/stream`, { token: owner.token })).frames.map(
    ({ data }) => data,
  );

test.each([
  "This model's maximum context length is 8192 tokens, however you requested 9000 tokens.",
  "prompt is too long: 210000 tokens > 200000 maximum",
  "the request exceeds the available context size",
])("retries once with a shorter conversation when the model returns %j", async (error) => {
  model.script([{ status: 400, error }, { text: ["fits"] }]);
  const { json } = await ask(await agent());
  expect(json).toMatchObject({ status: "completed", output: "fits" });
  expect(model.asked.map(({ messages: told }: Json) => told.length)).toEqual([9, 3]);
  expect(model.asked[1].messages.at(0).content).toMatch(/^6 /);
  const events = await typesOf(json.run_id);
  expect(events.filter(({ type }) => type === "context.compacted")).toMatchObject([{ left_out: 6 }]);
  expect(events.map(({ type }) => type)).toContain("step.reset");
});

test("fails the run with the model's error when the model rejects the shorter conversation too", async () => {
  model.script([{ status: 400, error: "context_length_exceeded" }]);
  const { json } = await ask(await agent());
  expect(json).toMatchObject({ status: "failed", error_code: "model_error" });
  expect(model.asked).toHaveLength(2);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json.error_message).toContain("context_length");
});

test("does not repeat a request whose conversation cannot be shortened", async () => {
  model.script([{ status: 400, error: "context_length_exceeded" }]);
  await ask(await agent(), { messages: [] });
  expect(model.asked).toHaveLength(1);
});

test("sends the whole conversation to a fallback model with a larger context", async () => {
  const fallbacks = [{ id: "wide", credential_id: config.model.credential_id }];
  model.script([{ status: 413, error: "context window exceeded" }, { text: ["wide"] }]);
  const { json } = await ask(await agent({ model: { ...config.model, fallbacks } }));
  expect(json.output).toBe("wide");
  expect(model.asked.map((asked) => [asked.model, asked.messages.length])).toEqual([
    ["scripted", 9],
    ["wide", 9],
  ]);
});

test("shortens a long run to its question and newest results, and keeps the requests of later steps as short", async () => {
  tools.answer = (_, response) => response.end("y".repeat(6000));
  const { json: toolset } = await owner.post("/v1/agent-toolsets", {
    name: "desk",
    kind: "http",
    url: tools.url,
    http_tools: [
      { name: "look", description: "Looks.", method: "GET", path: "/look", parameters: { type: "object" } },
    ],
  });
  const look = { calls: [{ name: "desk__look", arguments: "{}" }] };
  model.script([
    look,
    look,
    look,
    { status: 400, error: "context_length_exceeded" },
    look,
    { text: ["done"] },
  ]);
  const name = await agent({ toolsets: [{ toolset_id: toolset.id }] });
  const { json } = await ask(name, { messages: undefined });
  expect(json.output).toBe("done");
  const told = model.asked.map(({ messages: all }: Json) => all.map(({ role }: Json) => role).join(" "));
  const pair = " assistant tool";
  expect(told).toEqual([
    "user",
    `user${pair}`,
    `user${pair}${pair}`,
    `user${pair}${pair}${pair}`,
    `user${pair}`,
    `user${pair}`,
  ]);
});
