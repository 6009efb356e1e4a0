import type { LanguageModelV4StreamPart } from "@ai-sdk/provider";
import { expect, test } from "vitest";
import { AnswerAssembler } from "./answer.ts";

const address = {
  credentialId: "mcr_1",
  provider: "openai",
  baseUrl: null,
  apiKey: "key",
  id: "gpt-5",
} as const;
const none = { total: 1, noCache: undefined, cacheRead: undefined, cacheWrite: undefined };
const finish = {
  type: "finish",
  finishReason: { unified: "stop", raw: "stop" },
  usage: { inputTokens: none, outputTokens: { total: 1, text: undefined, reasoning: undefined } },
} satisfies LanguageModelV4StreamPart;
const sealed = { openai: { itemId: "rs_1", reasoningEncryptedContent: "s" } };

function assemble(parts: readonly LanguageModelV4StreamPart[]) {
  const pieces: string[] = [];
  const gathering = new AnswerAssembler(address, ({ delta }) => pieces.push(delta));
  for (const part of [...parts, finish]) gathering.add(part);
  return { ...gathering.answer(), pieces };
}

test("orders the parts of an answer by their starts, and drops reasoning that no output follows", () => {
  const { message, text } = assemble([
    { type: "reasoning-start", id: "0", providerMetadata: sealed },
    { type: "reasoning-end", id: "0" },
    { type: "text-start", id: "1" },
    { type: "text-start", id: "2" },
    { type: "text-delta", id: "2", delta: "b" },
    { type: "text-delta", id: "1", delta: "a" },
    { type: "tool-call", toolCallId: "x", toolName: "look", input: "{}" },
    { type: "reasoning-start", id: "3", providerMetadata: sealed },
  ]);
  expect(text).toBe("ab");
  expect(message.content).toMatchObject([
    { type: "reasoning", providerOptions: sealed },
    { type: "text", text: "a" },
    { type: "text", text: "b" },
    { type: "tool-call", toolName: "look" },
  ]);
  const nothing = assemble([{ type: "reasoning-start", id: "0", providerMetadata: sealed }]);
  expect(nothing.message.content).toEqual([{ type: "text", text: "" }]);
});

test("joins a surrogate pair that arrives in two deltas, and drops a lone half", () => {
  const [high, low] = "\u{1F600}".split("");
  const { text, pieces } = assemble([
    { type: "text-delta", id: "1", delta: `a${high}` },
    { type: "text-delta", id: "1", delta: `${low}b${high}` },
  ]);
  expect(text).toBe("a\u{1F600}b");
  expect(pieces.join("")).toBe(text);
});

const mebibyte = "x".repeat(1024 ** 2);
const endless: Record<string, () => LanguageModelV4StreamPart> = {
  "empty text blocks": () => ({ type: "text-start", id: "1" }),
  "empty reasoning blocks": () => ({ type: "reasoning-end", id: String(Math.random()) }),
  "tool calls": () => ({ type: "tool-call", toolCallId: "x", toolName: "look", input: "{}" }),
  "arguments of one call": () => ({ type: "tool-input-delta", id: "x", delta: mebibyte }),
  text: () => ({ type: "text-delta", id: "x", delta: mebibyte }),
  "text with a new id for each delta": () => ({ type: "text-delta", id: String(Math.random()), delta: "x" }),
  "encrypted reasoning": () => ({
    type: "reasoning-start",
    id: String(Math.random()),
    providerMetadata: { openai: { itemId: "rs_1", reasoningEncryptedContent: mebibyte } },
  }),
  sources: () => ({ type: "source", sourceType: "url", id: "x", url: "https://example.com" }),
};

test.each(Object.entries(endless))("ends an answer of endless %s with an error", (_, next) => {
  const gathering = new AnswerAssembler(address, () => {});
  const add = () => {
    for (let count = 0; count < 10_000; count += 1) gathering.add(next());
  };
  expect(add).toThrow(/has more than|called more than/);
});
