import { expect, test } from "vitest";
import type { Json } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { callModel } from "./call.ts";
import type { Message } from "./messages.ts";

const model = await startModelServer();

const mark = { cache_control: { type: "ephemeral" } };
const remembered = [
  { role: "system" as const, content: "Be brief." },
  { role: "system" as const, content: "Facts: none." },
  { role: "user" as const, content: [{ type: "text" as const, text: "Hi." }] },
];

async function requestOf(provider: "anthropic" | "openai_compatible", prompt: Message[]): Promise<Json> {
  model.script([{ status: 400 }]);
  const address = {
    credentialId: "mcr_1",
    provider,
    baseUrl: model.url,
    apiKey: "key",
    id: "claude-sonnet-4-5",
  };
  const options = { prompt, abortSignal: AbortSignal.timeout(20_000) };
  await expect(callModel(address, fetch, options, () => {})).rejects.toThrow("returned 400");
  return model.asked[0];
}

test("puts remembered facts after the cache mark of the system prompt", async () => {
  expect((await requestOf("anthropic", remembered)).system).toEqual([
    { type: "text", text: "Be brief.", ...mark },
    { type: "text", text: "Facts: none." },
  ]);
});

test("joins the system messages for providers other than Anthropic", async () => {
  expect((await requestOf("openai_compatible", remembered)).messages).toEqual([
    { role: "system", content: "Be brief.\n\nFacts: none." },
    { role: "user", content: "Hi." },
  ]);
});

test("marks the system prompt and the last message for Anthropic's prompt cache", async () => {
  const prompt = [
    { role: "system" as const, content: "Be brief." },
    { role: "user" as const, content: [{ type: "text" as const, text: "First." }] },
    { role: "assistant" as const, content: [{ type: "text" as const, text: "Yes." }] },
    { role: "user" as const, content: [{ type: "text" as const, text: "Last." }] },
  ];
  const { system, messages } = await requestOf("anthropic", prompt);
  expect(system).toEqual([{ type: "text", text: "Be brief.", ...mark }]);
  expect(messages[0].content[0]).toEqual({ type: "text", text: "First." });
  expect(messages.at(-1).content.at(-1)).toEqual({ type: "text", text: "Last.", ...mark });
});
