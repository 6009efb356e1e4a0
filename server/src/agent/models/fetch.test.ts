import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createRawServer } from "node:net";
import { afterAll, expect, test } from "vitest";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { modelFetch } from "./fetch.ts";

const mebibyte = Buffer.alloc(1024 ** 2, "x");
let ended = Promise.withResolvers<number>();
/** Sends as many mebibytes as the path specifies, and reports how many mebibytes the client accepted. */
const server = createServer((request, response) => {
  let left = Number(request.url?.slice(1));
  let sent = 0;
  response.on("close", () => ended.resolve(sent));
  const more = () => {
    while (left > 0) {
      left -= 1;
      sent += 1;
      if (!response.write(mebibyte)) return void response.once("drain", more);
    }
    response.end();
  };
  more();
});
await once(server.listen(0, "127.0.0.1"), "listening");
afterAll(() => {
  server.closeAllConnections();
  server.close();
});
const fetch = modelFetch(parseOpenedHosts(["127.0.0.0/8"]));
const get = (mebibytes: number) =>
  fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/${mebibytes}`);

async function read(response: Response): Promise<number> {
  let bytes = 0;
  for await (const piece of response.body!) bytes += (piece as Uint8Array).length;
  return bytes;
}

test("reads an answer of up to 64 MiB, and rejects a longer answer", async () => {
  expect(await read(await get(3))).toBe(3 * 1024 ** 2);
  ended = Promise.withResolvers();
  await expect(get(1000).then(read)).rejects.toThrow("exceeds 64 MiB");
  // The client closes the connection, so the server stops sending.
  expect(await ended.promise).toBeLessThan(200);
});

test("closes the connection to the model's server when the reader of the answer cancels", async () => {
  ended = Promise.withResolvers();
  const response = await get(1000);
  const reader = response.body!.getReader();
  await reader.read();
  await reader.cancel();
  expect(await ended.promise).toBeLessThan(200);
});

/** Starts a TCP server that sends these bytes, even if they break the rules of HTTP. */
async function answering(bytes: string): Promise<AsyncDisposable & { url: string }> {
  const raw = createRawServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => socket.write(bytes));
  });
  await once(raw.listen(0, "127.0.0.1"), "listening");
  return {
    url: `http://127.0.0.1:${(raw.address() as AddressInfo).port}/`,
    async [Symbol.asyncDispose]() {
      raw.close();
    },
  };
}

test.each(["099", "600", "999"])("returns 502 for the invalid status %s", async (status) => {
  await using server = await answering(
    `HTTP/1.1 ${status} What\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhm`,
  );
  const response = await fetch(server.url);
  expect(response.status).toBe(502);
  expect(await read(response)).toBe(2);
});

test("rejects a response that switches to another protocol", async () => {
  await using server = await answering(
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
  );
  await expect(fetch(server.url)).rejects.toThrow("another protocol");
});
