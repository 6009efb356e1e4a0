/** An HTTP API for tests that records requests and returns scripted responses. */
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll } from "vitest";

export interface ToolServer {
  url: string;
  asked: { method: string; path: string; headers: IncomingHttpHeaders; body: string }[];
  /** Sends the response to a request. The default response has status 200 and `{"ok":true}`. */
  answer: ((path: string, response: ServerResponse) => void) | undefined;
}

export async function startToolServer(): Promise<ToolServer> {
  const tools: ToolServer = { url: "", asked: [], answer: undefined };
  const server = createServer((request, response) => {
    let body = "";
    request.setEncoding("utf8");
    request.on("data", (piece: string) => (body += piece));
    request.on("end", () => {
      const path = request.url ?? "";
      tools.asked.push({ method: request.method ?? "", path, headers: request.headers, body });
      if (tools.answer) tools.answer(path, response);
      else response.writeHead(200, { "content-type": "application/json" }).end('{"ok":true}');
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  tools.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/api`;
  return tools;
}
