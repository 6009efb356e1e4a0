import { createHash } from "node:crypto";
import { once } from "node:events";
import http, { type IncomingMessage, type RequestListener, type Server } from "node:http";
import { BlockList, connect as connectTo, type Socket } from "node:net";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { defineError } from "#lib/errors.ts";
import { type FunctionLease, FunctionSites, type Functions } from "./functions.ts";
import { Ingress } from "../ingress.ts";
import { Upstreams } from "./upstreams.ts";

const domain = "apps.test";
const host = `hello.fn.${domain}`;
const key = "fnk_canary4711";
const busy = defineError("function_busy", 503, () => "busy");

let server: Server;
let upstreams: Upstreams;
let machines: Map<string, http.Server>;
let sockets: Set<Socket>;
let functions: Functions & {
  route: ReturnType<Functions["find"]>;
  entered: string[];
  left: number;
  ended: string[];
};
let heard: { headers: IncomingMessage["headers"]; body: string }[];
let counted: { status: number; ms: number }[];

beforeEach(async () => {
  machines = new Map();
  sockets = new Set();
  heard = [];
  counted = [];
  functions = {
    route: { functionId: "f1", isDeployed: true, keyHash: null },
    entered: [],
    left: 0,
    ended: [],
    find: (name) => (name === "hello" ? functions.route : undefined),
    acquire: async () => {
      const machine = [...machines.keys()].at(-1) ?? "none";
      functions.entered.push(machine);
      return lease(machine);
    },
    recordResponse: (_id, seen) => void counted.push(seen),
  };
  upstreams = new Upstreams(async (machine) => {
    const inside = machines.get(machine);
    if (!inside) throw Object.assign(new Error("gone"), { kind: "not_found" });
    const { port } = inside.address() as AddressInfo;
    return connectTo(port, "127.0.0.1");
  });
  const ingress = new Ingress({
    rules: [new FunctionSites({ domain, functions, upstreams, limits: { perFunction: 3 } })],
    domains: [domain],
    apiHost: null,
    certificates: null,
    tlsSuffix: "",
    trustedProxies: new BlockList(),
    log: () => {},
  });
  server = ingress.createServer({
    handle: (_request, response) => void response.end("the APIs"),
    upgrade: (_request, socket) => void socket.destroy(),
    clientError: (_error, socket) => void socket.destroy(),
    options: { shouldUpgradeCallback: () => false },
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});

afterEach(async () => {
  upstreams.endAll();
  for (const inside of machines.values()) {
    inside.closeAllConnections();
    inside.close();
  }
  for (const socket of sockets) socket.destroy();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

function lease(machine: string, timeoutMs = 30_000): FunctionLease {
  return {
    machine,
    port: 8080,
    timeoutMs,
    release: () => (functions.left += 1),
    reportGone: async () => {
      functions.ended.push(machine);
      machines.delete(machine);
    },
    reportStuck: () => {
      functions.ended.push(machine);
      upstreams.end(machine);
    },
  };
}

async function machine(id: string, answer?: RequestListener): Promise<void> {
  const inside = http.createServer(
    answer ??
      ((request, response) => {
        let body = "";
        request.on("data", (piece: Buffer) => (body += piece.toString()));
        request.on("end", () => {
          heard.push({ headers: request.headers, body });
          response.end(`${request.method} ${request.url}`);
        });
      }),
  );
  inside.on("connection", (socket: Socket) => sockets.add(socket));
  await new Promise<void>((resolve) => inside.listen(0, "127.0.0.1", resolve));
  machines.set(id, inside);
}

interface Answer {
  status: number;
  headers: IncomingMessage["headers"];
  body: string;
}

function ask(
  path = "/",
  options: { method?: string; headers?: Record<string, string>; body?: Buffer | string; host?: string } = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const asked = http.request({
      port: (server.address() as AddressInfo).port,
      path,
      method: options.method ?? "GET",
      headers: { host: options.host ?? host, ...options.headers },
      agent: false,
    });
    asked.once("error", reject);
    asked.once("response", (response) => {
      let body = "";
      response.on("data", (piece: Buffer) => (body += piece.toString()));
      response.on("end", () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body }),
      );
      response.on("error", reject);
    });
    asked.end(options.body);
  });
}

const codeOf = ({ body }: Answer) => (JSON.parse(body) as { error: { code: string } }).error.code;

test("serves a function by its name, with the same request id in the request and the response", async () => {
  await machine("m1");
  const answer = await ask("/some/path?q=1", { headers: { "x-request-id": "own-1" } });
  expect(answer).toMatchObject({ status: 200, body: "GET /some/path?q=1" });
  expect(answer.headers["x-request-id"]).toBe("own-1");
  expect(heard[0]!.headers["x-request-id"]).toBe("own-1");
  expect(counted).toMatchObject([{ status: 200 }]);
  await vi.waitFor(() => expect(functions.left).toBe(1));
});

test("serves no function for an unknown name or a name below a function's name", async () => {
  expect((await ask("/", { host: `other.fn.${domain}` })).status).toBe(404);
  expect((await ask("/", { host: `a.hello.fn.${domain}` })).status).toBe(404);
  expect(functions.entered).toEqual([]);
});

test("reports a function without a deployment, and starts no instance", async () => {
  functions.route = { functionId: "f1", isDeployed: false, keyHash: null };
  const answer = await ask();
  expect([answer.status, codeOf(answer)]).toEqual([404, "function_not_deployed"]);
  expect(functions.entered).toEqual([]);
});

test("refuses a request without the key before any instance starts, and hides the key from the handler", async () => {
  await machine("m1");
  functions.route = {
    functionId: "f1",
    isDeployed: true,
    keyHash: createHash("sha256").update(key).digest(),
  };
  for (const headers of [
    {},
    { "x-api-key": "fnk_wrong" },
    { authorization: "Bearer fnk_wrong" },
    { authorization: key },
  ]) {
    const answer = await ask("/", { headers: headers as Record<string, string> });
    expect([answer.status, codeOf(answer)]).toEqual([401, "unauthorized"]);
    expect(answer.headers["www-authenticate"]).toBe("Bearer");
  }
  expect(functions.entered).toEqual([]);
  await ask("/", { headers: { "x-api-key": key, authorization: "Bearer the handler's" } });
  await ask("/", { headers: { authorization: `Bearer ${key}` } });
  expect(heard).toHaveLength(2);
  expect(heard[0]!.headers.authorization).toBe("Bearer the handler's");
  expect(heard[1]!.headers.authorization).toBeUndefined();
  expect(JSON.stringify(heard)).not.toContain("canary");
});

test("passes the caller's credentials to a public function unchanged", async () => {
  await machine("m1");
  await ask("/", { headers: { "x-api-key": "theirs", authorization: "Bearer theirs" } });
  expect(heard[0]!.headers).toMatchObject({ "x-api-key": "theirs", authorization: "Bearer theirs" });
});

test("refuses a large body by its length before any instance starts, and a large chunked body during its transfer", async () => {
  await machine("m1");
  const large = Buffer.alloc(6 * 1024 ** 2 + 1);
  const said = await ask("/", { method: "POST", body: large });
  expect([said.status, codeOf(said)]).toEqual([413, "payload_too_large"]);
  expect(functions.entered).toEqual([]);
  const streamed = await ask("/", {
    method: "POST",
    body: large,
    headers: { "transfer-encoding": "chunked" },
  });
  expect([streamed.status, codeOf(streamed)]).toEqual([413, "payload_too_large"]);
});

test("sends the request with its body to another instance when the machine disappears before anything was sent", async () => {
  await machine("m2");
  functions.acquire = async () => lease(functions.ended.length === 0 ? "m1" : "m2");
  const answer = await ask("/", { method: "POST", body: "kept" });
  expect(answer.status).toBe(200);
  expect(heard[0]!.body).toBe("kept");
  expect(functions.ended).toEqual(["m1"]);
});

test("returns 502 without a second attempt when a function ends during a request", async () => {
  await machine("m1", (request) => void request.socket.destroy());
  const answer = await ask("/", { method: "POST", body: "once" });
  expect([answer.status, codeOf(answer)]).toEqual([502, "function_crashed"]);
  expect(functions.entered).toEqual(["m1"]);
});

test("stops an instance that does not respond in time, and reports it to the visitor", async () => {
  await machine("m1", () => {});
  functions.acquire = async () => lease("m1", 100);
  const answer = await ask();
  expect([answer.status, codeOf(answer)]).toEqual([504, "function_timeout"]);
  expect(functions.ended).toEqual(["m1"]);
  expect(counted).toMatchObject([{ status: 504 }]);
});

test("reports an announced body that does not arrive, without an effect on others' instances", async () => {
  await machine("m1");
  functions.acquire = async () => lease("m1", 200);
  for (const part of [undefined, "a"]) {
    const asked = http.request({
      port: (server.address() as AddressInfo).port,
      method: "POST",
      headers: { host, "content-length": "10" },
      agent: false,
    });
    asked.on("error", () => {});
    asked.flushHeaders();
    if (part !== undefined) asked.write(part);
    const [answer] = (await once(asked, "response")) as [IncomingMessage];
    expect([answer.statusCode, answer.headers["x-kontor-error"]]).toEqual([408, "body_too_slow"]);
    asked.destroy();
  }
  expect(functions.ended).toEqual([]);
  expect((await ask()).status).toBe(200);
});

test("drops a visitor that does not read its response, without an effect on others' instances", async () => {
  await machine("m1", (request, response) => {
    response.end(request.url === "/large" ? Buffer.alloc(64 * 1024 ** 2) : "small");
  });
  functions.acquire = async () => lease("m1", 300);
  const asked = connectTo((server.address() as AddressInfo).port, "127.0.0.1");
  sockets.add(asked);
  asked.on("error", () => {});
  asked.write(`GET /large HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
  await vi.waitFor(() => expect(functions.left).toBe(1), { timeout: 10_000 });
  expect(functions.ended).toEqual([]);
  expect((await ask()).body).toBe("small");
});

test("gives a machine that does not read the request the same time as one that does not respond", async () => {
  await machine("m1", (request) => void request.pause());
  functions.acquire = async () => lease("m1", 200);
  const answer = await ask("/", { method: "POST", body: Buffer.alloc(6 * 1024 ** 2) });
  expect([answer.status, codeOf(answer)]).toEqual([504, "function_timeout"]);
  expect(functions.ended).toEqual(["m1"]);
});

test("passes on the errors of the instance manager", async () => {
  functions.acquire = () => Promise.reject(busy());
  const answer = await ask();
  expect([answer.status, codeOf(answer), answer.headers["retry-after"]]).toEqual([503, "function_busy", "2"]);
});

test("refuses requests above a function's limit, and releases the slot of a disconnected visitor at once", async () => {
  const signals: AbortSignal[] = [];
  functions.acquire = (_id, signal) => {
    signals.push(signal);
    return new Promise((_resolve, reject) =>
      signal.addEventListener("abort", () => reject(signal.reason as Error)),
    );
  };
  const waiting = Array.from({ length: 3 }, () =>
    http
      .get({ port: (server.address() as AddressInfo).port, headers: { host }, agent: false })
      .on("error", () => {}),
  );
  await vi.waitFor(() => expect(signals).toHaveLength(3));
  expect(codeOf(await ask())).toBe("function_busy");
  waiting[0]!.destroy();
  await vi.waitFor(() => expect(signals[0]!.aborted).toBe(true));
  await vi.waitFor(() => expect(counted.some(({ status }) => status === 499)).toBe(true));
  for (const left of waiting) left.destroy();
});

test("refuses a WebSocket with a reason", async () => {
  await machine("m1");
  const answer = await ask("/", {
    headers: { connection: "Upgrade", upgrade: "websocket", "sec-websocket-version": "13" },
  });
  expect([answer.status, codeOf(answer)]).toEqual([501, "upgrade_not_supported"]);
});
