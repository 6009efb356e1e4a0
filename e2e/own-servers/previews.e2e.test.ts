/**
 * Ports of real sandboxes as sites: through the machine's own loopback, over TLS, in a real browser, and after kill -9.
 */
import { existsSync, readFileSync } from "node:fs";
import type { ClientRequest, IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from "node:http";
import https from "node:https";
import net from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import type { Reply } from "../support/api.ts";
import { openBrowser } from "../support/browser.ts";
import { eventually, type Sandbox } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";

const MIB = 1024 * 1024;
let server: Server;

beforeAll(async () => {
  server = await startServer({ KONTOR_POOL_SIZE: "0", KONTOR_POOL_TEMPLATES: "node-22" }, ["node-22"]);
});
afterAll(() => server.destroy());

/** Code of a site with a page, an echoing WebSocket, an event stream, and bodies of any size in both directions. */
const site = `
const http = require("http"), crypto = require("crypto");
const listeners = new Set();
const page = \`<!doctype html><title>inside</title><p id=fetched></p><p id=socket></p><script>
fetch("/whoami?x=1").then(async (r) => { fetched.textContent = await r.text() });
const ws = new WebSocket(location.origin.replace("http", "ws") + "/echo");
ws.onopen = () => ws.send("hello"); ws.onmessage = (m) => { socket.textContent = m.data };
</script>\`;
const server = http.createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://x");
  if (pathname === "/") return response.setHeader("content-type", "text/html").end(page);
  if (pathname === "/events") {
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    listeners.add(response);
    return request.on("close", () => listeners.delete(response));
  }
  if (pathname === "/say") {
    for (const each of listeners) each.write("data: " + searchParams.get("text") + "\\n\\n");
    return response.end(String(listeners.size));
  }
  if (pathname === "/count") {
    let bytes = 0;
    return request.on("data", (piece) => (bytes += piece.length)).on("end", () => response.end(String(bytes)));
  }
  if (pathname === "/bytes") {
    let left = Number(searchParams.get("n"));
    const piece = Buffer.alloc(65536, 97);
    const more = () => {
      while (left > 0) {
        const part = left < piece.length ? piece.subarray(0, left) : piece;
        left -= part.length;
        if (!response.write(part)) return response.once("drain", more);
      }
      response.end();
    };
    return more();
  }
  response.end(JSON.stringify({ url: request.url, headers: request.headers }));
});
server.on("upgrade", (request, socket) => {
  const key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  const accept = crypto.createHash("sha1").update(key).digest("base64");
  socket.write("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: " + accept + "\\r\\n\\r\\n");
  socket.on("error", () => {});
  socket.on("data", (frame) => {
    const length = frame[1] & 127, mask = frame.subarray(2, 6);
    const text = frame.subarray(6, 6 + length).map((byte, at) => byte ^ mask[at % 4]);
    socket.write(Buffer.concat([Buffer.from([0x81, length]), text]));
  });
});
server.listen(Number(process.argv[2]), process.argv[3]);
`;

async function create(input: Record<string, unknown> = {}): Promise<Sandbox> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template: "node-22", ...input } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  onTestFinished(async () => {
    await server.api("DELETE", `/v1/sandboxes/${made.body.id}`);
  });
  return made.body as Sandbox;
}

/** Starts the site in the sandbox, on only one address of its loopback. */
async function serve(id: string, port = 3000, address = "127.0.0.1"): Promise<void> {
  const content = Buffer.from(site).toString("base64");
  const wrote = await server.api("POST", `/v1/sandboxes/${id}/files`, {
    body: { path: "/workspace/site.js", content },
  });
  expect(wrote.status).toBeLessThan(300);
  const started = await server.api("POST", `/v1/sandboxes/${id}/commands`, {
    body: { command: `exec node /workspace/site.js ${port} ${address}` },
  });
  expect(started.status).toBe(201);
  const name = await hostOf(id, port);
  await eventually(
    () => visit(name, "/whoami"),
    ({ headers }) => headers["x-kontor-error"] !== "not_listening",
  );
}

async function hostOf(id: string, port = 3000): Promise<string> {
  const reply = await server.api("GET", `/v1/sandboxes/${id}/host?port=${port}`);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  return reply.body.host as string;
}

const ca = () => readFileSync(join(server.dataDir, "ca.crt"));

/** Connects by TLS and trusts the installation's authority. The name need not resolve. */
function open(name: string, path: string, options: https.RequestOptions = {}): ClientRequest {
  const [servername, port] = name.split(":");
  return https.request({
    agent: false,
    ...options,
    host: "127.0.0.1",
    port,
    servername,
    ca: ca(),
    path,
    headers: { host: name, ...(options.headers as OutgoingHttpHeaders) },
  });
}

interface Visit {
  status: number;
  headers: IncomingHttpHeaders;
  body: string;
}

function visit(name: string, path: string, headers: OutgoingHttpHeaders = {}): Promise<Visit> {
  return new Promise((resolve, reject) => {
    const request = open(name, path, { headers });
    request.on("error", reject);
    request.on("response", (response) => {
      let body = "";
      response.on("data", (piece: Buffer) => (body += piece.toString()));
      response.on("error", reject);
      response.on("end", () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body }),
      );
    });
    request.end();
  });
}

function waitForResponse(request: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => request.on("response", resolve).on("error", reject));
}

test("a browser that trusts the authority loads a preview page, its requests and its WebSocket", async () => {
  const { id, preview_host_base } = await create();
  await serve(id);
  const name = await hostOf(id);
  expect(name).toBe(`3000-${String(preview_host_base)}`);
  const browser = await openBrowser(server);
  const page = await browser.newPage();
  const response = await page.goto(`https://${name}/`);
  expect(response?.status()).toBe(200);
  expect((await response?.securityDetails())?.issuer).toContain("Kontor local authority");
  await page.getByText("hello", { exact: true }).waitFor();
  await page.getByText("/whoami").waitFor();
  expect(JSON.parse((await page.textContent("#fetched")) ?? "")).toMatchObject({
    url: "/whoami?x=1",
    headers: { host: name, "x-forwarded-proto": "https", "x-forwarded-host": name },
  });
  // A port without a server shows a page that reloads itself.
  const other = await hostOf(id, 4000);
  await page.goto(`https://${other}/`);
  expect(await page.textContent("h1")).toBe("Nothing listens on this port yet");
  await serve(id, 4000);
  await page.getByText("hello", { exact: true }).waitFor();
});

test("reaches guest servers on either loopback address, in any network mode that allows ports", async () => {
  for (const [network, address] of [
    ["restricted", "::1"],
    ["open", "127.0.0.1"],
  ] as const) {
    const { id } = await create({ network });
    await serve(id, 8080, address);
    expect((await visit(await hostOf(id, 8080), "/whoami")).status).toBe(200);
  }
  const { id } = await create({ network: "off" });
  const refused = await server.api("GET", `/v1/sandboxes/${id}/host?port=80`);
  expect([refused.status, refused.body.code]).toEqual([409, "network_off"]);
});

test("passes 200 MB in both directions at the speed of the slower side, and keeps the server's memory small", async () => {
  const { id } = await create();
  await serve(id);
  const name = await hostOf(id);
  const size = 200 * MIB;
  const before = server.residentBytes;
  let most = before;
  const look = () => (most = Math.max(most, server.residentBytes));

  const down = open(name, `/bytes?n=${size}`);
  down.end();
  const response = await waitForResponse(down);
  let received = 0;
  for await (const piece of response) {
    received += (piece as Buffer).length;
    // The reader pauses every few megabytes. A server with an unbounded buffer would let the guest run ahead.
    if (received % (8 * MIB) < (piece as Buffer).length) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      look();
    }
  }
  expect(received).toBe(size);

  const up = open(name, "/count", { method: "POST", headers: { "content-length": size } });
  const counted = waitForResponse(up);
  const piece = Buffer.alloc(MIB);
  for (let sent = 0; sent < size; sent += piece.length) {
    if (!up.write(piece)) await new Promise((resolve) => up.once("drain", resolve));
    look();
  }
  up.end();
  let total = "";
  for await (const part of await counted) total += String(part);
  expect(Number(total)).toBe(size);
  expect(most - before).toBeLessThan(100 * MIB);
});

test("forwards server-sent events as soon as they are sent", async () => {
  const { id } = await create();
  await serve(id);
  const name = await hostOf(id);
  const request = open(name, "/events");
  onTestFinished(() => void request.destroy());
  request.end();
  const events = (await waitForResponse(request)).iterator({ destroyOnReturn: false });
  for (const text of ["one", "two", "three"]) {
    expect((await visit(name, `/say?text=${text}`)).body).toBe("1");
    expect(String((await events.next()).value)).toBe(`data: ${text}\n\n`);
  }
  request.destroy();
  await eventually(
    () => visit(name, "/say?text=x"),
    ({ body }) => body === "0",
  );
});

test("preview_auth admits only requests with the token, in three forms, and hides the token from the guest", async () => {
  const { id, preview_auth_token } = await create({ preview_auth: true });
  const token = String(preview_auth_token);
  const name = await hostOf(id);
  for (const [path, headers] of [
    ["/", {}],
    ["/?svc_preview_token=wrong", {}],
    ["/", { authorization: `Bearer ${server.token}` }],
  ] as const) {
    const refused = await visit(name, path, headers);
    expect([refused.status, refused.headers["x-kontor-error"]]).toEqual([401, "unauthorized"]);
  }
  const show = { "x-service-preview-token": token };
  await server.api("POST", `/v1/sandboxes/${id}/files`, {
    body: { path: "/workspace/site.js", content: Buffer.from(site).toString("base64") },
  });
  await server.api("POST", `/v1/sandboxes/${id}/commands`, {
    body: { command: "exec node /workspace/site.js 3000 127.0.0.1" },
  });
  await eventually(
    () => visit(name, "/", show),
    ({ status }) => status === 200,
  );
  const inQuery = await visit(name, `/whoami?a=1&svc_preview_token=${token}`);
  const [cookie = ""] = inQuery.headers["set-cookie"] ?? [];
  expect(cookie).toMatch(/^svc_preview_token=\w+; Path=\/; HttpOnly; SameSite=Lax; Secure$/);
  expect(JSON.parse(inQuery.body).url).toBe("/whoami?a=1");
  for (const headers of [
    show,
    { cookie: `mine=1; ${cookie.split(";")[0]}`, authorization: `Bearer ${server.token}` },
  ]) {
    const seen = await visit(name, "/whoami", headers);
    expect(seen.status).toBe(200);
    expect(seen.body).not.toContain(token);
    expect(seen.body).not.toContain(server.token);
  }
});

test("twenty visitors wake a paused sandbox once and get responses; without auto_resume it stays paused", async () => {
  const { id } = await create({ auto_resume: true });
  await serve(id);
  const name = await hostOf(id);
  await pauseSandbox(id);
  const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => visit(name, `/whoami?n=${n}`)));
  expect(answers.map(({ status }) => status)).toEqual(Array.from({ length: 20 }, () => 200));
  const feed = await server.api("GET", `/v1/sandboxes/events?sandbox_id=${id}&event_type=sandbox.resumed`);
  expect(feed.body.items).toHaveLength(1);

  const sleeper = await create();
  const asleep = await hostOf(sleeper.id);
  await pauseSandbox(sleeper.id);
  const refused = await visit(asleep, "/");
  expect([refused.status, refused.headers["x-kontor-error"]]).toEqual([503, "paused"]);
});

async function pauseSandbox(id: string): Promise<void> {
  const reply = await server.api("POST", `/v1/sandboxes/${id}/pause`);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
}

test("reports a terminated sandbox at its preview address at once, and closes its connections", async () => {
  const { id } = await create();
  await serve(id);
  const name = await hostOf(id);
  const request = open(name, "/events");
  request.on("error", () => {});
  request.end();
  const events = await waitForResponse(request);
  const ended = new Promise<void>((resolve) => events.once("close", () => resolve()));
  events.on("error", () => {}).resume();
  await server.api("DELETE", `/v1/sandboxes/${id}`);
  const gone = await visit(name, "/", { accept: "text/html" });
  expect([gone.status, gone.headers["x-kontor-error"]]).toEqual([410, "terminated"]);
  expect(gone.body).toContain("it was deleted");
  await ended;
});

test("reveals no host name to another workspace's token, and no port of an unknown sandbox", async () => {
  const { id } = await create();
  const team = await must("POST", "/api/v1/teams", { name: "others" });
  const { token } = await must("POST", "/api/v1/api-tokens", {
    name: "e2e",
    expires_in_days: 30,
    scopes: null,
    workspace: team["id"],
  });
  const foreign = await server.api("GET", `/v1/sandboxes/${id}/host?port=80`, { token: String(token) });
  const unknown = await server.api("GET", "/v1/sandboxes/sbx_doesnotexist/host?port=80", {
    token: String(token),
  });
  expect(foreign.status).toBe(404);
  expect(foreign.body).toEqual(unknown.body);
  const name = (await hostOf(id)).replace(id.slice(4), "a".repeat(20));
  expect((await visit(name, "/")).status).toBe(404);
});

async function must(method: string, path: string, body: unknown): Promise<Record<string, unknown>> {
  const reply: Reply = await server.api(method, path, { body });
  expect(reply.status, JSON.stringify(reply.body)).toBeLessThan(300);
  return reply.body as Record<string, unknown>;
}

test("refuses a request with two or ambiguous host names before it reaches a guest", async () => {
  const { id } = await create();
  await serve(id);
  const [name = ""] = (await hostOf(id)).split(":");
  const attempts = [
    `GET / HTTP/1.1\r\n\r\n`,
    `GET / HTTP/1.1\r\nHost: ${name}\r\nHost: 127.0.0.1\r\n\r\n`,
    `GET http://127.0.0.1/ HTTP/1.1\r\nHost: ${name}\r\n\r\n`,
    `POST / HTTP/1.1\r\nHost: ${name}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `POST / HTTP/1.1\r\nHost: ${name}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n`,
  ];
  for (const attempt of attempts) expect(await speak(attempt)).toMatch(/^HTTP\/1.1 400/);
  expect(
    await speak(`GET http://${name}/whoami HTTP/1.1\r\nHost: ${name}\r\nConnection: close\r\n\r\n`),
  ).toMatch(/^HTTP\/1.1 200/);
});

function speak(text: string): Promise<string> {
  return new Promise((resolve) => {
    let got = "";
    const socket = net.connect(server.description.port, "127.0.0.1", () => socket.write(text));
    socket.on("data", (piece) => (got += piece.toString("latin1")));
    socket.on("error", () => {});
    socket.on("close", () => resolve(got));
    setTimeout(() => socket.end(), 2_000);
  });
}

test("a preview keeps its address and its certificate authority after kill -9 of the server", async () => {
  const { id } = await create();
  await serve(id);
  const name = await hostOf(id);
  const authority = ca();
  const pid = server.pid;
  await server.kill9();
  await server.start();
  expect(server.pid).not.toBe(pid);
  expect(ca()).toEqual(authority);
  expect(existsSync(join(server.dataDir, "ca.key"))).toBe(true);
  expect((await visit(name, "/whoami")).status).toBe(200);
});
