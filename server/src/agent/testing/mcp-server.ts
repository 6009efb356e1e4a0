/** MCP servers for tests: servers from npm as processes, and a scripted server. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll } from "vitest";
import { freePort } from "./free-port.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- a message's shape is what tests look at
type Json = any;

/** Returns the path of a package's program. */
function programOf(name: string): string {
  return join(dirname(createRequire(import.meta.url).resolve(`${name}/package.json`)), "dist/index.js");
}

/** Starts the reference server over streamable HTTP or over SSE. Returns its address. */
export async function startEverything(kind: "streamableHttp" | "sse"): Promise<string> {
  const port = await freePort();
  const child = spawn(process.execPath, [programOf("@modelcontextprotocol/server-everything"), kind], {
    env: { PORT: String(port) },
    stdio: ["ignore", "ignore", "pipe"],
  });
  afterAll(() => endOf(child));
  for await (const line of createInterface({ input: child.stderr })) if (line.includes(String(port))) break;
  child.stderr.resume();
  return `http://127.0.0.1:${port}/${kind === "sse" ? "sse" : "mcp"}`;
}

/** Starts a stdio server behind an HTTP bridge. Each request and each response is a line. */
export async function startBridged(
  name: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<string> {
  const child = spawn(process.execPath, [programOf(name), ...args], {
    env,
    stdio: ["pipe", "pipe", "ignore"],
  });
  afterAll(() => endOf(child));
  const waiting = new Map<unknown, (message: Json) => void>();
  createInterface({ input: child.stdout }).on("line", (line) => {
    const message: Json = JSON.parse(line);
    waiting.get(message.id)?.(message);
  });
  const { url } = await listen(async ({ method, body }, response) => {
    if (method !== "POST") return void response.writeHead(405).end();
    const answer = Promise.withResolvers<Json>();
    if (body.id !== undefined) waiting.set(body.id, answer.resolve);
    child.stdin.write(`${JSON.stringify(body)}\n`);
    if (body.id === undefined) return void response.writeHead(202).end();
    sendJson(response, await answer.promise);
  });
  return url;
}

interface McpRequest {
  method: string;
  path: string;
  headers: IncomingHttpHeaders;
  body: Json;
}

export interface ScriptedServer {
  url: string;
  asked: McpRequest[];
  tools: Json[];
  /** Returns the result of a call, or an error to throw. If the result is `undefined`, the call gets no response. */
  call: (params: Json) => Json;
  /** Resources with their contents. If undefined, the server has no resources. */
  resources: { uri: string; name: string; mimeType?: string; text?: string; blob?: string }[] | undefined;
  /** Called before any other handler. Returns true if this function has sent the response. */
  before: ((asked: McpRequest, response: ServerResponse) => boolean | Promise<boolean>) | undefined;
  /** Protocol version of the server: streamable HTTP before 2026, or the current version. */
  generation: "2025-11-25" | "2026-07-28";
  /** Returns the methods of the requests so far. */
  methods(): string[];
  stop(): Promise<void>;
  start(): Promise<void>;
}

export async function startMcpServer(): Promise<ScriptedServer> {
  const scripted: ScriptedServer = {
    url: "",
    asked: [],
    tools: [],
    call: () => ({ content: [{ type: "text", text: "Done." }] }),
    resources: undefined,
    before: undefined,
    generation: "2025-11-25",
    methods: () => scripted.asked.map(({ body }) => body?.method).filter((method) => method !== undefined),
    stop: async () => {},
    start: async () => {},
  };
  const { url, server } = await listen(async (asked, response) => {
    scripted.asked.push(asked);
    if (await scripted.before?.(asked, response)) return;
    if (asked.method !== "POST") return void response.writeHead(405).end();
    if (asked.body.id === undefined) return void response.writeHead(202).end();
    const { id, method, params } = asked.body;
    const result = resultOf(scripted, method, params);
    if (result === undefined) return;
    sendJson(response, result.error ? { jsonrpc: "2.0", id, ...result } : { jsonrpc: "2.0", id, result });
  });
  scripted.url = url;
  scripted.stop = async () => {
    server.closeAllConnections();
    await once(server.close(), "close");
  };
  scripted.start = async () =>
    void (await once(server.listen(Number(new URL(url).port), "127.0.0.1"), "listening"));
  return scripted;
}

function resultOf(
  { generation, tools, call, resources }: ScriptedServer,
  method: string,
  params: Json,
): Json {
  const isOfToday = generation === "2026-07-28";
  const head = isOfToday ? { resultType: "complete" } : {};
  const capabilities = { tools: {}, ...(resources ? { resources: {} } : {}) };
  const cached = isOfToday ? { ttlMs: 0, cacheScope: "private" } : {};
  const serverInfo = { name: "scripted", version: "1" };
  if (method === "server/discover" && isOfToday)
    return {
      ...head,
      supportedVersions: [generation],
      capabilities,
      serverInfo,
      ttlMs: 0,
      cacheScope: "private",
    };
  if (method === "initialize" && !isOfToday) return { protocolVersion: generation, capabilities, serverInfo };
  if (method === "tools/list")
    return { ...head, tools, ...(isOfToday ? { ttlMs: 0, cacheScope: "private" } : {}) };
  if (method === "tools/call") {
    const result = call(params);
    return result === undefined || result.error ? result : { ...head, ...result };
  }
  if (method === "resources/list" && resources)
    return {
      ...head,
      ...cached,
      resources: resources.map(({ uri, name, mimeType }) => ({ uri, name, mimeType })),
    };
  if (method === "resources/read" && resources) {
    const { name, ...found } = resources.find(({ uri }) => uri === params.uri) ?? { name: "" };
    return name === ""
      ? { error: { code: -32002, message: "Resource not found" } }
      : { ...head, ...cached, contents: [found] };
  }
  return { error: { code: -32601, message: "Method not found" } };
}

async function listen(
  answer: (asked: McpRequest, response: ServerResponse) => unknown,
): Promise<{ url: string; server: Server }> {
  const server = createServer((request, response) => {
    void bodyOf(request)
      .then((body) =>
        answer(
          { method: request.method ?? "", path: request.url ?? "", headers: request.headers, body },
          response,
        ),
      )
      .catch(() => response.destroy());
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`, server };
}

async function bodyOf(request: IncomingMessage): Promise<Json> {
  let body = "";
  for await (const piece of request.setEncoding("utf8")) body += String(piece);
  return body === "" ? undefined : JSON.parse(body);
}

function sendJson(response: ServerResponse, message: Json): void {
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(message));
}

async function endOf(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null) return;
  child.kill("SIGKILL");
  await once(child, "exit");
}
