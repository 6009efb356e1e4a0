/** Hostile model servers. Every call must end soon, whatever the server sends. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, expect, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { callModel } from "./call.ts";
import { modelFetch } from "./fetch.ts";
import type { ModelAddress } from "./providers.ts";
import { Wire } from "./wire.ts";

let status = 200;
let piece = "";
let begins = "";
let sentBytes = 0;
let asked = 0;
/** Sends the same piece repeatedly until the client disconnects. */
const server = createServer((_, response) => {
  asked += 1;
  sentBytes = 0;
  const many = piece.repeat(Math.ceil((64 * 1024) / piece.length));
  response.writeHead(status, { "content-type": "text/event-stream" });
  response.write(begins);
  const more = () => {
    while (!response.destroyed) {
      sentBytes += many.length;
      if (!response.write(many)) return void response.once("drain", more);
    }
  };
  more();
});
await once(server.listen(0, "127.0.0.1"), "listening");
afterAll(() => {
  server.closeAllConnections();
  server.close();
});
const fetch = modelFetch(parseOpenedHosts(["127.0.0.0/8"]));
const providers = ["openai", "anthropic", "openai_compatible", "mistral"] as const;

function call(provider: ModelAddress["provider"]) {
  const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return callModel(
    { credentialId: "mcr_1", provider, baseUrl, apiKey: "a-key-of-the-model-0123", id: "gpt-5" },
    fetch,
    {
      prompt: [{ role: "user", content: [{ type: "text", text: "Hi" }] }],
      abortSignal: AbortSignal.timeout(60_000),
    },
    () => {},
  );
}

const event = (data: object) => `data: ${JSON.stringify(data)}\n\n`;
const response = { id: "r", created_at: 1, model: "m", object: "response" };
const chunk = { id: "c", object: "chat.completion.chunk", created: 1, model: "m" };
const all = (what: string) => ({ openai: what, anthropic: what, openai_compatible: what, mistral: what });
const silent: [string, ReturnType<typeof all>][] = [
  ["comments", all(": still here\n")],
  ["empty lines", all("\r\n")],
  ["bytes of one line", all("[],")],
  ["lines of one event", all("data: [\n")],
  [
    "events without content",
    {
      openai: event({ type: "response.in_progress", response }),
      anthropic: event({ type: "ping" }),
      openai_compatible: event({ ...chunk, choices: [] }),
      mistral: event({ ...chunk, choices: [{ index: 0, delta: { role: "assistant" } }] }),
    },
  ],
  [
    "empty text",
    {
      openai: event({ type: "response.output_text.delta", item_id: "i", delta: "" }),
      anthropic: event({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "" } }),
      openai_compatible: event({ ...chunk, choices: [{ delta: { content: "" } }] }),
      mistral: event({ ...chunk, choices: [{ index: 0, delta: { role: "assistant", content: "" } }] }),
    },
  ],
];

test.each(
  silent.flatMap(([name, of]) => providers.map((provider) => [name, provider, of[provider]] as const)),
)(
  "rejects endless %s from %s without a retry",
  async (_, provider, what) => {
    [status, begins, piece, asked] = [200, "", what, 0];
    await expect(call(provider)).rejects.toMatchObject({
      kind: "refused",
      message: expect.stringMatching(/^The model's answer was rejected: .* without content$/),
    });
    expect(asked).toBe(1);
    expect(sentBytes).toBeLessThan(16 * 1024 ** 2);
  },
  60_000,
);

test("yields to the event loop while it reads answers", async () => {
  const sent = new Uint8Array(256 * 1024).fill(120);
  const wires = [1, 2].map(() => new Wire(async () => new Response(ReadableStream.from([sent]))));
  let turns = 0;
  const count = () => {
    turns += 1;
    next = setImmediate(count);
  };
  let next = setImmediate(count);
  const read = await Promise.all(wires.map(async ({ fetch: from }) => (await from("http://x")).bytes()));
  clearImmediate(next);
  for (const bytes of read) expect(Buffer.compare(bytes, sent)).toBe(0);
  // The calls read 512 KiB together, at most 16 KiB in each turn of the event loop.
  expect(turns).toBeGreaterThanOrEqual(30);
});

test("stops reading after too many lines without content, even if they are few bytes", async () => {
  [status, begins, piece] = [200, "", "\n"];
  await expect(call("anthropic")).rejects.toMatchObject({
    kind: "refused",
    message: "The model's answer was rejected: its server sent 100000 lines without content",
  });
});

test.each(providers)("reads only the beginning of an endless error response from %s", async (provider) => {
  asked = 0;
  status = 401;
  begins = "";
  piece = "no, ";
  await expect(call(provider)).rejects.toMatchObject({
    kind: "refused",
    message: expect.stringContaining("401"),
  });
  expect([asked, sentBytes < 8 * 1024 ** 2]).toEqual([1, true]);
});

test("rejects an endless stream of content once it exceeds 64 MiB", async () => {
  status = 200;
  begins = "";
  piece = event({ ...chunk, choices: [{ delta: { content: "a" } }], padding: "x".repeat(1024 ** 2) });
  await expect(call("openai_compatible")).rejects.toMatchObject({
    kind: "refused",
    message: "The model's answer was rejected: the answer exceeds 64 MiB",
  });
});

test("rejects an answer with endlessly many empty blocks", async () => {
  status = 200;
  begins = event({ type: "message_start", message: { id: "m", model: "m", usage: { input_tokens: 1 } } });
  piece = event({ type: "content_block_start", index: 0, content_block: { type: "text", text: "" } });
  await expect(call("anthropic")).rejects.toMatchObject({
    kind: "refused",
    message: "The model's answer has more than 2000 parts.",
  });
});
