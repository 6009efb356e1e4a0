import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const { json: credential } = await owner.post("/v1/model-credentials", {
  provider: "anthropic",
  name: "signed",
  api_key: "a-key-of-the-model-0123",
  base_url: model.url,
});
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [
    { name: "look", description: "", method: "GET", path: "/look", parameters: { type: "object" } },
  ],
});
const { model: other } = await modelConfig(owner, model.url);
const config = {
  model: {
    provider: "anthropic",
    id: "claude-sonnet-4-5",
    credential_id: credential.id,
    reasoning: "low",
    fallbacks: [{ id: "scripted", credential_id: other.credential_id }],
  },
  toolsets: [{ toolset_id: toolset.id }],
};
await owner.post("/v1/agents", { name: "thinker", config });

const start = (index: number, block: object) => ({
  type: "content_block_start",
  index,
  content_block: block,
});
const delta = (index: number, part: object) => ({ type: "content_block_delta", index, delta: part });
const stop = (index: number) => ({ type: "content_block_stop", index });

/** Returns an answer as Anthropic streams it. */
function toStream(blocks: readonly Json[], reason: string): { raw: string } {
  const usage = { input_tokens: 10, output_tokens: 5 };
  const message = { id: "m", type: "message", role: "assistant", model: "claude", content: [], usage };
  const events: Json[] = [
    { type: "message_start", message: { ...message, stop_reason: null, stop_sequence: null } },
    ...blocks,
    {
      type: "message_delta",
      delta: { stop_reason: reason, stop_sequence: null },
      usage: { output_tokens: 5 },
    },
    { type: "message_stop" },
  ];
  return { raw: events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join("") };
}

const thinking = toStream(
  [
    start(0, { type: "thinking", thinking: "", signature: "" }),
    delta(0, { type: "thinking_delta", thinking: "Hm, " }),
    delta(0, { type: "thinking_delta", thinking: "let me look." }),
    delta(0, { type: "signature_delta", signature: "c2lnbmVk" }),
    stop(0),
    start(1, { type: "redacted_thinking", data: "aGlkZGVu" }),
    stop(1),
    start(2, { type: "tool_use", id: "toolu_1", name: "shop__look", input: {} }),
    delta(2, { type: "input_json_delta", partial_json: "{}" }),
    stop(2),
  ],
  "tool_use",
);
const done = toStream(
  [start(0, { type: "text", text: "" }), delta(0, { type: "text_delta", text: "Seen." }), stop(0)],
  "end_turn",
);
const invoke = async (body: object = {}) =>
  (await owner.post("/v1/agents/thinker/invoke", { input: "Look.", ...body })).json;

test("sends signed reasoning back with the tools' results, and drops the reasoning after the run", async () => {
  model.script([thinking, done]);
  const json = await invoke();
  expect(json).toMatchObject({ status: "completed", output: "Seen." });
  const said = model.asked[1].messages.find(({ role }: Json) => role === "assistant").content;
  expect(said).toMatchObject([
    { type: "thinking", thinking: "Hm, let me look.", signature: "c2lnbmVk" },
    { type: "redacted_thinking", data: "aGlkZGVu" },
    { type: "tool_use", name: "shop__look" },
  ]);
  model.script([done]);
  await invoke({ session_id: json.session_id });
  const told = JSON.stringify(model.asked[0].messages);
  expect(told).toContain("shop__look");
  expect(told).not.toMatch(/let me look|c2lnbmVk|aGlkZGVu/);
});

test("omits one provider's reasoning from a request to another provider", async () => {
  model.script((body: Json) => {
    if (body.stream_options) return { text: ["Seen by another."] };
    return body.messages.length === 1 ? thinking : { status: 400 };
  });
  expect(await invoke()).toMatchObject({ status: "completed", output: "Seen by another." });
  const told = JSON.stringify(model.asked.at(-1).messages);
  expect(told).toContain("shop__look");
  expect(told).not.toMatch(/let me look|c2lnbmVk|aGlkZGVu/);
});
