import { expect, test } from "vitest";
import type { Provider } from "../../agents/config.ts";
import type { Json } from "../../testing/agent-app.ts";
import { startModelServer } from "../../testing/model-server.ts";
import { callModel, type ModelOptions } from "../call.ts";
import { toolMessage } from "../messages.ts";
import { takesPictures } from "./by-provider.ts";

const model = await startModelServer();
const data = Buffer.from("\x89PNG\r\n\x1a\n", "latin1").toString("base64");
const picture = { type: "file" as const, mediaType: "image/png", data: { type: "data" as const, data } };
const prompt = [
  { role: "user" as const, content: [{ type: "text" as const, text: "Look." }] },
  {
    role: "assistant" as const,
    content: [{ type: "tool-call" as const, toolCallId: "call_1", toolName: "look", input: {} }],
  },
  toolMessage([
    {
      id: "call_1",
      tool: "look",
      isOk: true,
      text: "Seen: [image]",
      content: [{ type: "text", text: "Seen:" }, picture],
    },
  ]),
];
const asText = "Seen:\n\n[image of type image/png, 8 bytes, left out]";

async function requestsTo(
  provider: Provider,
  id: string,
  options: Partial<ModelOptions> = {},
): Promise<Json[]> {
  model.script([{ status: 400, error: "no" }]);
  const address = { credentialId: "mcr_1", provider, baseUrl: model.url, apiKey: "key", id };
  const all = { prompt, abortSignal: AbortSignal.timeout(20_000), ...options };
  await expect(callModel(address, fetch, all, () => {})).rejects.toThrow("returned 400");
  return model.asked;
}

test("sends a picture to Anthropic within the tool's result", async () => {
  const [{ messages }] = await requestsTo("anthropic", "claude-sonnet-4-5");
  expect(messages.at(-1).content).toMatchObject([
    {
      type: "tool_result",
      content: [
        { type: "text", text: "Seen:" },
        { type: "image", source: { type: "base64", media_type: "image/png", data } },
      ],
    },
  ]);
});

test("sends a picture to OpenAI within the function's output", async () => {
  const [{ input }] = await requestsTo("openai", "gpt-5");
  expect(input.at(-1)).toMatchObject({
    type: "function_call_output",
    output: [
      { type: "input_text", text: "Seen:" },
      { type: "input_image", image_url: `data:image/png;base64,${data}` },
    ],
  });
});

test("sends a picture to other chat completion servers in a message after the tools' results", async () => {
  const [{ messages }] = await requestsTo("openai_compatible", "some-model", { takesPictures: true });
  expect(messages.slice(-2)).toMatchObject([
    { role: "tool", content: "Seen:\n\n[image of type image/png, 8 bytes, shown in the next message]" },
    {
      role: "user",
      content: [{ type: "text" }, { type: "image_url", image_url: { url: `data:image/png;base64,${data}` } }],
    },
  ]);
});

test.each([
  ["openai_compatible", "some-model", undefined],
  ["openai_compatible", "qwen2.5-vl", false],
  ["mistral", "pixtral-large", true],
] as const)("sends a note in place of a picture to %s/%s with images %s", async (provider, id, images) => {
  const asked = await requestsTo(provider, id, { takesPictures: images });
  expect(asked).toHaveLength(1);
  expect(asked[0].messages.at(-1)).toMatchObject({ role: "tool", content: asText });
});

test("repeats the request without pictures when a server refuses pictures", async () => {
  let refused = 0;
  const asked = await requestsTo("openai", "gpt-5", { onPicturesRefused: () => (refused += 1) });
  expect(asked).toHaveLength(2);
  expect(asked[1].input.at(-1)).toMatchObject({ type: "function_call_output", output: asText });
  expect(refused).toBe(1);
});

test.each([
  [400, "context_length_exceeded", 1],
  [413, "request_too_large", 2],
])(
  "after %i %s, repeats a request without its pictures only if the body was too large",
  async (status, error, requests) => {
    model.script([{ status, error }]);
    const address = {
      credentialId: "mcr_1",
      provider: "openai" as const,
      baseUrl: model.url,
      apiKey: "key",
      id: "gpt-5",
    };
    const options = { prompt, abortSignal: AbortSignal.timeout(20_000) };
    await expect(callModel(address, fetch, options, () => {})).rejects.toMatchObject({
      kind: "too_long",
      status,
    });
    expect(model.asked).toHaveLength(requests);
  },
);

test("puts a note about the failure before the picture of a failed call", () => {
  const [part] = toolMessage([{ id: "call_1", tool: "look", isOk: false, text: "", content: [picture] }])
    .content as Json[];
  expect(part.output).toEqual({
    type: "content",
    value: [{ type: "text", text: "The call failed." }, picture],
  });
});

test.each([
  ["anthropic", "claude-opus-4-1", true],
  ["anthropic", "claude-2.1", false],
  ["openai", "gpt-4o-mini", true],
  ["openai", "o3-mini", false],
  ["openai", "gpt-oss-120b", false],
  ["openai_compatible", "Qwen/Qwen2.5-VL-7B-Instruct", true],
  ["openai_compatible", "openai/gpt-4o", true],
  ["openai_compatible", "llama-3.3-70b", false],
] as const)("detects whether provider %s's model %s accepts pictures", (provider, id, expected) => {
  expect(takesPictures({ provider, id }, undefined)).toBe(expected);
  expect(takesPictures({ provider, id }, !expected)).toBe(!expected);
});
