/**
 * The dev world: one HTTP server on loopback with the counterparts that Kontor's features need. With it, every page of
 * the documentation can be tried on one host, without an account elsewhere. The dev world writes nothing to disk, and
 * only this host reaches it.
 */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Exchange } from "./exchange.ts";
import { Hooks } from "./hooks.ts";
import { complete, listModels } from "./model.ts";
import { getOrder, refund } from "./shop.ts";

export interface DevWorld {
  /** Address without a path, such as `http://127.0.0.1:8090`. */
  url: string;
  close(): Promise<void>;
}

type Handler = (exchange: Exchange) => void;

/** Largest body in bytes: enough for a conversation with pictures. */
const bodyMaxBytes = 32 * 1024 ** 2;

export async function startDevWorld(port: number, print: (line: string) => void): Promise<DevWorld> {
  const hooks = new Hooks(print);
  const routes: readonly [string, RegExp, Handler][] = [
    ["GET", /^\/v1\/models$/, listModels],
    ["POST", /^\/v1\/chat\/completions$/, complete],
    ["GET", /^\/shop\/orders\/[^/]+$/, getOrder],
    ["POST", /^\/shop\/refunds$/, refund],
    ["GET", /^\/hooks$/, (exchange) => hooks.list(exchange)],
    ["POST", /^\/hooks(?:\/|$)/, (exchange) => hooks.receive(exchange)],
  ];
  const server = createServer((request, response) => {
    void respond(request, response, routes).catch(() => response.destroy());
  });
  await once(server.listen(port, "127.0.0.1"), "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: async () => {
      const closed = once(server, "close");
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

async function respond(
  request: IncomingMessage,
  response: ServerResponse,
  routes: readonly [string, RegExp, Handler][],
): Promise<void> {
  const reply = (status: number, json: object): void =>
    void response.writeHead(status, { "content-type": "application/json" }).end(`${JSON.stringify(json)}\n`);
  const path = (request.url ?? "/").split("?", 1)[0]!;
  const [, , handle] =
    routes.find(([method, pattern]) => method === request.method && pattern.test(path)) ?? [];
  if (!handle) return reply(404, { error: "The dev world has /v1, /shop and /hooks." });
  const body = await readBody(request);
  if (body === undefined) return reply(413, { error: `The body exceeds ${bodyMaxBytes} bytes.` });
  handle({
    path,
    headers: request.headers,
    body,
    reply,
    stream: (events) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(events.map((data) => `data: ${data}\n\n`).join(""));
    },
  });
}

/** Returns the body of a request. Undefined if the body is too large. */
async function readBody(request: IncomingMessage): Promise<string | undefined> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > bodyMaxBytes) return undefined;
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString("utf8");
}
