import { once } from "node:events";
import { createServer, get, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, onTestFinished, test, vi } from "vitest";
import { endWithSlowReader } from "./slow-readers.ts";

const windowMs = 1_000;

/** Returns a response that has sent its headers to a client that reads nothing. */
async function unreadResponse(): Promise<ServerResponse> {
  const server = createServer();
  onTestFinished(() => void server.close());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const request = get({ port: (server.address() as AddressInfo).port, agent: false });
  request.on("error", () => {});
  request.on("response", (response: IncomingMessage) => response.on("error", () => {}));
  onTestFinished(() => void request.destroy());
  const [, response] = (await once(server, "request")) as [IncomingMessage, ServerResponse];
  response.on("error", () => {});
  response.writeHead(200).flushHeaders();
  return response;
}

function useClock(): void {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
}

test("keeps a silent stream that writes just before the end of a window, and ends it after a window without progress", async () => {
  const response = await unreadResponse();
  useClock();
  endWithSlowReader(response, { mayBeSilent: true, windowMs });
  vi.advanceTimersByTime(windowMs);
  response.write(Buffer.alloc(64 * 1024 ** 2));
  expect(response.writableNeedDrain).toBe(true);
  vi.advanceTimersByTime(windowMs);
  expect(response.destroyed).toBe(false);
  // The kernel has accepted bytes by now, and accepts none in the next window.
  await vi.waitFor(() => expect(response.socket?.writableLength).toBeGreaterThan(0));
  for (let window = 0; window < 3 && !response.destroyed; window += 1) vi.advanceTimersByTime(windowMs);
  expect(response.destroyed).toBe(true);
});

test("ends a download that moves no byte in a window", async () => {
  const response = await unreadResponse();
  useClock();
  endWithSlowReader(response, { windowMs });
  vi.advanceTimersByTime(windowMs);
  expect(response.destroyed).toBe(true);
});
