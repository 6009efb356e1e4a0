import { expect, test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { type Item, responses, unfit } from "../testing/responses.ts";
import { startToolServer } from "../testing/tool-server.ts";

const model = await startModelServer();
const other = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [
    { name: "look", description: "", method: "GET", path: "/look", parameters: { type: "object" } },
  ],
});
async function credentialAt(url: string): Promise<string> {
  const { json } = await owner.post("/v1/model-credentials", {
    provider: "openai",
    name: "local",
    api_key: "a-key-of-the-model-0123",
    base_url: url,
  });
  return json.id as string;
}
const [first, second] = [await credentialAt(model.url), await credentialAt(other.url)];

let made = 0;
async function agent(id: string, more: object = {}): Promise<string> {
  made += 1;
  const config = {
    model: { provider: "openai", id, credential_id: first, ...more },
    toolsets: [{ toolset_id: toolset.id }],
  };
  const { json } = await owner.post("/v1/agents", { name: `thinker-${made}`, config });
  return json.name as string;
}
const invoke = async (name: string, body: object = {}) =>
  (await owner.post(`/v1/agents/${name}/invoke`, { input: "Look.", ...body })).json;

const look: Item = { call: "shop__look", arguments: "{}" };
const seen = responses([
  { thought: [], sealed: "s9" },
  { text: "Seen.", phase: "final_answer" },
]);

test("sends OpenAI's encrypted reasoning back in order, and asks OpenAI to store nothing", async () => {
  const name = await agent("gpt-5", { reasoning: "low" });
  const thinking = responses([
    { thought: ["Hm. ", "A look."], sealed: "s1" },
    { text: "I look.", phase: "commentary" },
    look,
    { thought: [], sealed: "s2" },
    look,
  ]);
  model.script((body: Json) => {
    const isAnswered = body.input.some(({ type }: Json) => type === "function_call_output");
    return unfit(body, ["s1", "s2"]) ?? (isAnswered ? seen : thinking);
  });
  const run = await invoke(name);
  expect(run).toMatchObject({ status: "completed", output: "Seen." });
  expect(model.asked).toHaveLength(2);
  for (const body of model.asked)
    expect(body).toMatchObject({
      store: false,
      include: ["reasoning.encrypted_content"],
      reasoning: { effort: "low" },
    });
  const summary = ["Hm. ", "A look."].map((text) => ({ type: "summary_text", text }));
  const output = (call: Json) => ({ type: "function_call_output", call_id: call.call_id });
  const [, ...said] = model.asked[1].input;
  expect(said).toMatchObject([
    { type: "reasoning", id: "rs_0", encrypted_content: "s1", summary },
    { role: "assistant", content: "I look.", phase: "commentary" },
    { type: "function_call", name: "shop__look" },
    { type: "reasoning", id: "rs_3", encrypted_content: "s2", summary: [] },
    { type: "function_call", name: "shop__look" },
    output(said[2]),
    output(said[4]),
  ]);
  // The next run does not send the reasoning of this run.
  model.script([seen]);
  await invoke(name, { session_id: run.session_id });
  expect(model.asked[0].input.map(({ type }: Json) => type)).not.toContain("reasoning");
  expect(JSON.stringify(model.asked[0].input)).toContain("shop__look");
});

test("omits reasoning that was encrypted for another account", async () => {
  const name = await agent("gpt-5", { fallbacks: [{ id: "gpt-5", credential_id: second }] });
  const thinking = responses([{ thought: ["Hm."], sealed: "s1" }, look]);
  model.script((body: Json) => (body.input.length === 1 ? thinking : { status: 401 }));
  other.script((body: Json) => unfit(body, []) ?? seen);
  expect(await invoke(name)).toMatchObject({ status: "completed", output: "Seen." });
  expect(other.asked[0].input.map(({ type }: Json) => type)).toEqual([
    undefined,
    "function_call",
    "function_call_output",
  ]);
});

test("requests reasoning from an unknown model if the config enables reasoning, and sends back no unencrypted reasoning", async () => {
  const name = await agent("gpt-oss-120b", { reasoning: "high" });
  const thinking = responses([{ thought: ["Hm."], sealed: null }, look]);
  model.script((body: Json) => unfit(body, []) ?? (body.input.length === 1 ? thinking : seen));
  expect(await invoke(name)).toMatchObject({ status: "completed", output: "Seen." });
  expect(model.asked[1]).toMatchObject({ store: false, reasoning: { effort: "high" } });
  const plain = await agent("gpt-4.1", { reasoning: "high" });
  model.script([responses([{ text: "Seen." }])]);
  expect(await invoke(plain)).toMatchObject({ status: "completed" });
  expect([model.asked[0].reasoning, model.asked[0].include]).toEqual([undefined, undefined]);
});

test("fails the run after one request when a server sends only SSE comments", async () => {
  const name = await agent("gpt-5");
  model.script([{ raw: ": still here\n".repeat(500_000) }]);
  const { run_id } = await invoke(name);
  expect((await owner.get(`/v1/agents/runs/${run_id}`)).json).toMatchObject({
    status: "failed",
    error_code: "model_error",
    error_message: expect.stringContaining("without content"),
  });
  expect(model.asked).toHaveLength(1);
});
