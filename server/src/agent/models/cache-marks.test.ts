import { expect, test } from "vitest";
import { startModelServer } from "../testing/model-server.ts";
import { callModel } from "./call.ts";

const model = await startModelServer();

test("marks the system prompt and the last message for Anthropic's prompt cache", async () => {
  model.script([{ status: 400 }]);
  const address = {
    credentialId: "mcr_1",
    provider: "anthropic" as const,
    baseUrl: model.url,
    apiKey: "key",
    id: "claude-sonnet-4-5",
  };
  const prompt = [
    { role: "system" as const, content: "Be brief." },
    { role: "user" as const, content: [{ type: "text" as const, text: "First." }] },
    { role: "assistant" as const, content: [{ type: "text" as const, text: "Yes." }] },
    { role: "user" as const, content: [{ type: "text" as const, text: "Last." }] },
  ];
  const options = { prompt, abortSignal: AbortSignal.timeout(20_000) };
  await expect(callModel(address, fetch, options, () => {})).rejects.toThrow("answered 400");
  const [{ system, messages }] = model.asked;
  const mark = { cache_control: { type: "ephemeral" } };
  expect(system).toEqual([{ type: "text", text: "Be brief.", ...mark }]);
  expect(messages[0].content[0]).toEqual({ type: "text", text: "First." });
  expect(messages.at(-1).content.at(-1)).toEqual({ type: "text", text: "Last.", ...mark });
});
