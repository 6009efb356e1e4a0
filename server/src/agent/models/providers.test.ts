/** Cached models: each call uses its own key and its own fetch. */
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, expect, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { callModel } from "./call.ts";
import { type Fetch, modelFetch } from "./fetch.ts";

const heard: IncomingHttpHeaders[] = [];
const server = createServer((request, response) => {
  heard.push(request.headers);
  request.resume();
  response.writeHead(400).end("no");
});
await once(server.listen(0, "127.0.0.1"), "listening");
afterAll(() => {
  server.closeAllConnections();
  server.close();
});
const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const plain = modelFetch(parseOpenedHosts(["127.0.0.0/8"]));

test.each(["openai", "anthropic", "openai_compatible", "mistral"] as const)(
  "sends each concurrent call of one model of %s with its own key and its own fetch",
  async (provider) => {
    heard.length = 0;
    const call = (name: string) => {
      const fetch: Fetch = (input, init) =>
        plain(input, { ...init, headers: { ...(init?.headers as object), "x-way": name } });
      const address = { credentialId: "mcr_1", provider, baseUrl, apiKey: `key-of-${name}`, id: "model-1" };
      const prompt = [{ role: "user" as const, content: [{ type: "text" as const, text: "Hi" }] }];
      return callModel(address, fetch, { prompt, abortSignal: AbortSignal.timeout(30_000) }, () => {});
    };
    await Promise.allSettled(["a", "b", "c"].map(call));
    const name = provider === "anthropic" ? "x-api-key" : "authorization";
    const pairs = heard.map((of): [unknown, string] => [
      of["x-way"],
      String(of[name]).replace("Bearer ", ""),
    ]);
    expect(new Map(pairs)).toEqual(new Map(["a", "b", "c"].map((one) => [one, `key-of-${one}`])));
    for (const headers of heard) expect(Object.values(headers).join(" ")).not.toMatch(/\bnone\b/);
  },
);
