import { once } from "node:events";
import http, { type IncomingMessage, type RequestListener } from "node:http";
import net, { type AddressInfo, BlockList, type Socket } from "node:net";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { Ingress } from "./ingress.ts";
import { type Preview, type Previews, PreviewSites } from "./sites/previews.ts";
import { handlerSites } from "./sites/site.ts";
import { Upstreams } from "./sites/upstreams.ts";

const domain = "preview.test";
const host = `3000-abc.sbx.${domain}`;

/** The preview of the sandbox `abc`, and the real port of its machine. */
let preview: Preview | undefined;
let guestPort: number;
/** Called at each look-up with `afresh`, before its result: a test can replace the machine here. */
let onAfresh: () => void;
let woken: number;
let dialled: number;
let wake: () => Promise<void>;
let connectFails: { kind: string } | undefined;
let ingress: Ingress;
let upstreams: Upstreams;
let server: http.Server;
const trusted = new BlockList();

const previews: Previews = {
  find: async (sandbox, options) => {
    if (options?.afresh) onAfresh();
    return sandbox === "abc" ? preview : undefined;
  },
  wake: () => {
    woken += 1;
    return wake();
  },
  connect: async () => {
    dialled += 1;
    if (connectFails) throw Object.assign(new Error("no"), connectFails);
    const socket = net.connect({ port: guestPort, host: "127.0.0.1", allowHalfOpen: true });
    await once(socket, "connect").catch(() => {
      throw Object.assign(new Error("refused"), { kind: "connection_refused" });
    });
    return socket;
  },
};

beforeEach(async () => {
  preview = { token: null, state: "running", machine: "m1" };
  guestPort = 1;
  [woken, dialled] = [0, 0];
  onAfresh = () => {};
  connectFails = undefined;
  wake = async () => {
    preview = { token: null, state: "running", machine: "m2" };
  };
  upstreams = new Upstreams((machine, port) => previews.connect(machine, port));
  ingress = new Ingress({
    rules: [
      handlerSites({
        prefix: "files",
        domain,
        exists: async () => true,
        handle: async (id, _request, response) => void response.end(`files of ${id}`),
      }),
      new PreviewSites({ domain, previews, upstreams }),
    ],
    domains: [`sbx.${domain}`],
    apiHost: null,
    certificates: null,
    tlsSuffix: "",
    trustedProxies: trusted,
    log: () => {},
  });
  server = ingress.createServer({
    handle: (_request, response) => void response.end("the APIs"),
    upgrade: (_request, socket) => void socket.end("HTTP/1.1 101 Switching Protocols\r\n\r\nthe APIs"),
    clientError: (_error, socket) => void socket.end("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"),
    options: { keepAliveTimeout: 5_000, shouldUpgradeCallback: ({ url }) => url === "/v1/socket" },
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});

afterEach(async () => {
  upstreams.endAll();
  await ingress.close(0);
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

function port(): number {
  return (server.address() as AddressInfo).port;
}

/** Starts an HTTP server in the machine. */
async function guest(answer: RequestListener): Promise<http.Server> {
  const inside = http.createServer(answer);
  await new Promise<void>((resolve) => inside.listen(0, "127.0.0.1", resolve));
  guestPort = (inside.address() as AddressInfo).port;
  onTestFinished(() => {
    inside.closeAllConnections();
    inside.close();
  });
  return inside;
}

/** Starts a program in the machine that sends arbitrary bytes. */
async function rawGuest(respond: (socket: Socket) => void): Promise<Set<Socket>> {
  const sockets = new Set<Socket>();
  const inside = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(socket));
    respond(socket);
  });
  await new Promise<void>((resolve) => inside.listen(0, "127.0.0.1", resolve));
  guestPort = (inside.address() as AddressInfo).port;
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    inside.close();
  });
  return sockets;
}

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: string;
  trailers: NodeJS.Dict<string>;
}

function send(path: string, options: http.RequestOptions = {}, body?: string | Buffer): http.ClientRequest {
  const request = http.request({
    port: port(),
    host: "127.0.0.1",
    agent: false,
    path,
    ...options,
    headers: { host, ...(options.headers as object) },
  });
  request.on("error", () => {});
  if (body !== "open") request.end(body);
  return request;
}

async function answerOf(request: http.ClientRequest): Promise<Answer> {
  const [incoming] = (await once(request, "response")) as [IncomingMessage];
  let text = "";
  for await (const piece of incoming) text += String(piece);
  return {
    status: incoming.statusCode ?? 0,
    headers: incoming.headers,
    body: text,
    trailers: incoming.trailers,
  };
}

const get = (path: string, options?: http.RequestOptions) => answerOf(send(path, options));

/** Sends these bytes, and reads until the other side ends. */
async function raw(text: string): Promise<string> {
  const socket = net.connect(port(), "127.0.0.1");
  socket.on("error", () => {});
  socket.write(text);
  let got = "";
  socket.on("data", (piece) => {
    got += piece.toString("latin1");
  });
  const timer = setTimeout(() => socket.end(), 300);
  await once(socket, "close");
  clearTimeout(timer);
  return got;
}

describe("host names", () => {
  test("compares names without port, case and final dot, and passes unknown names to the APIs", async () => {
    await guest((_request, response) => response.end("the guest"));
    for (const same of [host, `${host}:8443`, host.toUpperCase(), `${host}.`]) {
      expect((await get("/", { headers: { host: same } })).body).toBe("the guest");
    }
    for (const other of [
      "127.0.0.1:8080",
      domain,
      "localhost",
      `x${domain}`,
      `3000-abc.sbx.${domain}.evil.test`,
    ]) {
      expect((await get("/", { headers: { host: other } })).body).toBe("the APIs");
    }
    expect((await get("/", { headers: { host: `files-abc.sbx.${domain}` } })).body).toBe("files of abc");
  });

  test.each([
    `0-abc.sbx.${domain}`,
    `65536-abc.sbx.${domain}`,
    `03000-abc.sbx.${domain}`,
    `3000-unknown.sbx.${domain}`,
    `3000.sbx.${domain}`,
    `a.3000-abc.sbx.${domain}`,
    `3000-sbx_abc.sbx.${domain}`,
  ])("returns 404 for %s, and never passes it to the APIs", async (name) => {
    const answer = await get("/", { headers: { host: name } });
    expect(answer.status).toBe(404);
    expect(answer.headers["x-kontor-error"]).toBe("not_found");
    expect(dialled).toBe(0);
  });

  test("refuses a request with two hosts or none", async () => {
    await guest((_request, response) => response.end("the guest"));
    const head = (lines: string) => raw(`GET / HTTP/1.1\r\n${lines}Connection: close\r\n\r\n`);
    expect(await head(`Host: ${host}\r\nHost: 127.0.0.1\r\n`)).toMatch(/^HTTP\/1.1 400/);
    expect(await head("")).toMatch(/^HTTP\/1.1 400/);
    const absolute = (address: string) =>
      raw(`GET http://${address}/x HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
    expect(await absolute("127.0.0.1")).toMatch(/^HTTP\/1.1 400/);
    expect(await absolute(`user@${host}`)).toMatch(/^HTTP\/1.1 400/);
    expect(await absolute(host)).toContain("the guest");
    expect(dialled).toBe(1);
  });

  test.each([
    ["two lengths", "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde"],
    [
      "a length and chunks",
      "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    ],
    ["an unknown coding", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"],
    ["a folded line", "X: a\r\n b\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"],
    ["a space before the colon", "Content-Length : 3\r\n\r\nabc"],
  ])("refuses a body with ambiguous framing: %s", async (_what, rest) => {
    const seen: string[] = [];
    await guest((request, response) => {
      seen.push(request.url ?? "");
      request.resume().on("end", () => response.end("the guest"));
    });
    const got = await raw(`POST / HTTP/1.1\r\nHost: ${host}\r\n${rest}`);
    expect(got).not.toContain("the guest");
    expect(seen).not.toContain("/x");
  });
});

describe("requests and responses", () => {
  test("passes method, path, headers and bodies unchanged, and drops hop-by-hop headers", async () => {
    let seen: IncomingMessage | undefined;
    await guest((request, response) => {
      seen = request;
      response.writeHead(201, "Made", ["X-A", "1", "x-a", "2", "Connection", "close, X-Hop", "X-Hop", "h"]);
      request.pipe(response);
    });
    const answer = await answerOf(
      send(
        "/a%20b/../c?x=%41&svc_preview_token=t",
        {
          method: "PATCH",
          headers: {
            "x-Mixed-Case": "v",
            connection: "x-private, close",
            "x-private": "p",
            "keep-alive": "timeout=9",
            "x-forwarded-for": "6.6.6.6",
            forwarded: "for=6.6.6.6",
            "x-real-ip": "6.6.6.6",
          },
        },
        "body",
      ),
    );
    expect(answer.status).toBe(201);
    expect(answer.body).toBe("body");
    expect(answer.headers["x-a"]).toBe("1, 2");
    expect(answer.headers["x-hop"]).toBeUndefined();
    expect(seen?.method).toBe("PATCH");
    expect(seen?.url).toBe("/a%20b/../c?x=%41");
    expect(seen?.rawHeaders).toContain("x-Mixed-Case");
    expect(seen?.headers).toMatchObject({
      host,
      "content-length": "4",
      "x-forwarded-for": "127.0.0.1",
      "x-forwarded-proto": "http",
      "x-forwarded-host": host,
    });
    for (const dropped of ["x-private", "keep-alive", "forwarded", "x-real-ip"]) {
      expect(seen?.headers[dropped]).toBeUndefined();
    }
  });

  test("reads the forwarding headers of a trusted proxy only", async () => {
    let seen: http.IncomingHttpHeaders = {};
    await guest((request, response) => {
      seen = request.headers;
      response.end();
    });
    const headers = { "x-forwarded-for": "198.51.100.7", "x-forwarded-proto": "https" };
    await get("/", { headers });
    expect(seen).toMatchObject({ "x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "http" });
    trusted.addAddress("127.0.0.1");
    await get("/", { headers });
    expect(seen).toMatchObject({
      "x-forwarded-for": "198.51.100.7, 127.0.0.1",
      "x-forwarded-proto": "https",
    });
  });

  test("drops a guest's HSTS, its cookies that would replace Kontor's, and its imitation of error pages", async () => {
    await guest((_request, response) => {
      response.setHeader("strict-transport-security", "max-age=1");
      response.setHeader("alt-svc", 'h3="evil.test:443"');
      response.setHeader("x-kontor-error", "paused");
      response.setHeader("set-cookie", ["a=1; Domain=preview.test; Path=/", "kontor_session=x", "b=2"]);
      response.end();
    });
    const { headers } = await get("/");
    expect(headers["set-cookie"]).toEqual(["a=1; Path=/", "b=2"]);
    for (const dropped of ["strict-transport-security", "alt-svc", "x-kontor-error"]) {
      expect(headers[dropped]).toBeUndefined();
    }
  });

  test("passes chunked bodies and trailers in both directions", async () => {
    let trailers: NodeJS.Dict<string> = {};
    await guest((request, response) => {
      request.resume().on("end", () => {
        trailers = request.trailers;
        response.writeHead(200, { trailer: "x-sum" });
        response.write("answer");
        response.addTrailers({ "x-sum": "2" });
        response.end();
      });
    });
    const request = send(
      "/",
      { method: "POST", headers: { trailer: "x-in", "transfer-encoding": "chunked" } },
      "open",
    );
    request.write("piece");
    request.addTrailers({ "x-in": "1" });
    request.end();
    const answer = await answerOf(request);
    expect(answer).toMatchObject({ body: "answer", trailers: { "x-sum": "2" } });
    expect(trailers).toEqual({ "x-in": "1" });
  });

  test("leaves the decision on Expect: 100-continue to the guest", async () => {
    const inside = await guest((request, response) => request.pipe(response));
    inside.on("checkContinue", (request: IncomingMessage, response: http.ServerResponse) => {
      if (request.url === "/no") return response.writeHead(417).end();
      response.writeContinue();
      request.pipe(response);
    });
    const headers = { expect: "100-continue", "content-length": "4" };
    const asked = send("/yes", { method: "POST", headers }, "open");
    asked.flushHeaders();
    await once(asked, "continue");
    asked.end("body");
    expect((await answerOf(asked)).body).toBe("body");
    const refused = send("/no", { method: "POST", headers }, "open");
    let wasTold = false;
    refused.on("continue", () => {
      wasTold = true;
    });
    refused.flushHeaders();
    expect((await answerOf(refused)).status).toBe(417);
    expect(wasTold).toBe(false);
    refused.destroy();
  });

  test("sends no body with HEAD, 204 and 304, and keeps the connection", async () => {
    await guest((request, response) => {
      if (request.method === "HEAD") response.setHeader("content-length", "1000");
      response.writeHead(request.url === "/304" ? 304 : request.url === "/204" ? 204 : 200).end();
    });
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    onTestFinished(() => agent.destroy());
    expect((await get("/", { agent, method: "HEAD" })).headers["content-length"]).toBe("1000");
    expect((await get("/204", { agent })).status).toBe(204);
    expect((await get("/304", { agent })).status).toBe(304);
    expect((await get("/", { agent })).status).toBe(200);
  });

  test.each([204, 304])("drops the Content-Length of a %i response", async (status) => {
    await rawGuest((socket) => {
      const head = `HTTP/1.1 ${status} X\r\nContent-Length: 5\r\nx-kept: 1\r\n\r\n`;
      socket.once("data", () => socket.end(head));
    });
    const { headers, status: received } = await get("/");
    expect([received, headers["content-length"], headers["x-kept"]]).toEqual([status, undefined, "1"]);
  });

  test("passes each piece of a response on as soon as the guest sends it", async () => {
    let say: (text: string) => void = () => {};
    await guest((_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
      say = (text) => void response.write(text);
    });
    const [incoming] = (await once(send("/events"), "response")) as [IncomingMessage];
    for (const event of ["data: 1\n\n", "data: 2\n\n"]) {
      say(event);
      const [piece] = (await once(incoming, "data")) as [Buffer];
      expect(piece.toString()).toBe(event);
    }
    incoming.destroy();
  });

  test("applies backpressure in both directions", async () => {
    let written = 0;
    let received = 0;
    const inside = await guest((request, response) => {
      if (request.method === "POST") {
        request.once("readable", () => (received = request.readableLength));
        return;
      }
      const piece = Buffer.alloc(64 * 1024);
      const more = () => {
        while (response.write(piece)) written += piece.length;
        written += piece.length;
      };
      response.on("drain", more);
      more();
    });
    inside.on("connection", (socket: Socket) => socket.setNoDelay());
    const reader = send("/");
    const [incoming] = (await once(reader, "response")) as [IncomingMessage];
    incoming.pause();
    await vi.waitFor(async () => {
      const before = written;
      await new Promise((resolve) => setTimeout(resolve, 100));
      expect(written).toBe(before);
    });
    expect(written).toBeLessThan(64 * 1024 * 1024);
    reader.destroy();

    const writer = send("/", { method: "POST", headers: { "transfer-encoding": "chunked" } }, "open");
    let sent = 0;
    const piece = Buffer.alloc(64 * 1024);
    const more = () => {
      while (writer.write(piece)) sent += piece.length;
      sent += piece.length;
    };
    writer.on("drain", more);
    more();
    await vi.waitFor(async () => {
      const before = sent;
      await new Promise((resolve) => setTimeout(resolve, 100));
      expect(sent).toBe(before);
    });
    expect(sent).toBeLessThan(64 * 1024 * 1024);
    expect(received).toBeGreaterThan(0);
    writer.destroy();
  });

  test("ends the guest's work when the visitor disconnects", async () => {
    const ended = Promise.withResolvers<void>();
    await guest((_request, response) => {
      response.write("begun");
      response.once("close", () => ended.resolve());
    });
    const request = send("/");
    const [incoming] = (await once(request, "response")) as [IncomingMessage];
    await once(incoming, "data");
    request.destroy();
    await ended.promise;
  });
});

describe("connections to the machine", () => {
  test("shares a connection among reads, and opens one for each write", async () => {
    await guest((request, response) => request.resume().on("end", () => response.end()));
    for (let n = 0; n < 3; n += 1) await get("/");
    expect(dialled).toBe(1);
    for (let n = 0; n < 3; n += 1) await answerOf(send("/", { method: "POST" }, "x"));
    expect(dialled).toBe(4);
  });

  test("repeats a read when its idle connection has died", async () => {
    let requests = 0;
    const sockets = await rawGuest((socket) => {
      socket.on("data", () => {
        requests += 1;
        // The second request on a connection gets no response, as if the guest closed the connection at that moment.
        if (requests === 2) socket.destroy();
        else socket.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
      });
    });
    expect((await get("/")).body).toBe("ok");
    expect(sockets.size).toBe(1);
    expect((await get("/")).body).toBe("ok");
    expect(requests).toBe(3);
  });

  test("closes the connections when the machine ends", async () => {
    await guest((_request, response) => response.end("ok"));
    await get("/");
    upstreams.end("m1");
    await get("/");
    expect(dialled).toBe(2);
  });
});

describe("invalid responses of a guest", () => {
  test.each([
    ["no HTTP", "SSH-2.0-OpenSSH\r\n"],
    ["headers without end", `HTTP/1.1 200 OK\r\n${"x: y\r\n".repeat(20_000)}`],
    ["a header of 100 KB", `HTTP/1.1 200 OK\r\nx: ${"y".repeat(100_000)}\r\n\r\n`],
    [
      "an unrequested response",
      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    ],
    ["endless interim responses", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100)],
    ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"],
    ["an invalid length", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
    ["an invalid status", "HTTP/1.1 1000 X\r\n\r\n"],
    ["a control character in the reason phrase", "HTTP/1.1 200 a\x01b\r\nContent-Length: 0\r\n\r\n"],
    ["a line break in a header", "HTTP/1.1 200 OK\r\nx: a\rb\r\nContent-Length: 0\r\n\r\n"],
    ["silence", ""],
  ])("%s", async (_what, said) => {
    await rawGuest((socket) => void socket.end(said));
    const answer = await get("/");
    expect(answer.status).toBe(502);
    expect(answer.headers["x-kontor-error"]).toBe("bad_response");
    await guest((_request, response) => response.end("well"));
    expect((await get("/")).body).toBe("well");
  });

  test.each([
    ["in chunks", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"],
    ["by length", "Content-Length: 8\r\n\r\nhalf"],
  ])("never presents a truncated response as complete: %s", async (_what, rest) => {
    await rawGuest((socket) => void socket.end(`HTTP/1.1 200 OK\r\n${rest}`));
    const incoming = await new Promise<IncomingMessage>((resolve) => {
      send("/").on("response", (answer) => {
        answer.on("error", () => {}).resume();
        answer.once("close", () => resolve(answer));
      });
    });
    expect(incoming.complete).toBe(false);
  });

  test("ends a response without a length when the guest ends it", async () => {
    await rawGuest((socket) => void socket.end("HTTP/1.0 200 OK\r\n\r\nall of it"));
    expect((await get("/")).body).toBe("all of it");
  });

  test("delivers a refusal although the client still sends its body", async () => {
    await rawGuest((socket) => {
      socket.once("data", () => socket.end("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\n\r\nbig"));
    });
    const answer = await answerOf(send("/", { method: "POST" }, Buffer.alloc(4 * 1024 * 1024)));
    expect(answer).toMatchObject({ status: 413, body: "big" });
  });
});

describe("upgrades", () => {
  const upgrade = (more = "") =>
    `GET /ws HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${more}\r\n`;

  async function dial(head: string): Promise<Socket> {
    const socket = net.connect(port(), "127.0.0.1");
    socket.on("error", () => {});
    socket.write(head);
    onTestFinished(() => void socket.destroy());
    return socket;
  }

  async function read(socket: Socket, until: string): Promise<string> {
    let got = "";
    while (!got.includes(until)) {
      const [piece] = (await once(socket, "data")) as [Buffer];
      got += piece.toString("latin1");
    }
    return got;
  }

  /** Accepts the upgrade, greets, and repeats all bytes twice. */
  async function echo(): Promise<{ head: string; ended: Promise<unknown> }> {
    const facts = { head: "", ended: undefined as unknown as Promise<unknown> };
    await rawGuest((socket) => {
      facts.ended = once(socket, "close");
      socket.once("data", (piece) => {
        facts.head = piece.toString();
        socket.write(
          "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-X: y\r\nSet-Cookie: kontor_session=x\r\n\r\nhello",
        );
        socket.on("data", (more) => void socket.write(Buffer.concat([more, more])));
      });
    });
    return facts;
  }

  test("connects both sides, with bytes that either sent early, and ends both together", async () => {
    const inside = await echo();
    const socket = await dial(`${upgrade("Cookie: a=1; svc_preview_token=t\r\n")}early`);
    const got = await read(socket, "earlyearly");
    expect(got).toMatch(/^HTTP\/1.1 101 [^]*Sec-X: y\r\n\r\nhello/);
    expect(got).not.toContain("kontor_session");
    expect(inside.head).toContain("Upgrade: websocket\r\n");
    expect(inside.head).toContain("Cookie: a=1\r\n");
    socket.write("ab");
    expect(await read(socket, "abab")).toBe("abab");
    socket.destroy();
    await inside.ended;
  });

  test("ends a WebSocket when the machine ends, and when the server shuts down", async () => {
    await echo();
    for (const end of [() => upstreams.end("m1"), () => ingress.close(0)]) {
      const socket = await dial(upgrade());
      await read(socket, "hello");
      end();
      await once(socket, "close");
    }
  });

  test("passes nothing more on the connection when the guest refuses the upgrade", async () => {
    const seen: string[] = [];
    await guest((request, response) => {
      seen.push(request.url ?? "");
      response.writeHead(403).end("no");
    });
    const socket = await dial(upgrade() + `GET /second HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
    expect(await read(socket, "no")).toMatch(/^HTTP\/1.1 403/);
    await once(socket, "close");
    expect(seen).toEqual(["/ws"]);
  });

  test("shows the 502 page when the guest responds with a control character in the reason phrase", async () => {
    await rawGuest((socket) => void socket.once("data", () => socket.end("HTTP/1.1 403 a\x01b\r\n\r\n")));
    const socket = await dial(upgrade());
    expect(await read(socket, "\r\n\r\n")).toMatch(/^HTTP\/1.1 502 [^]*bad_response/i);
    await once(socket, "close");
  });

  test("responds to an upgrade with an error page", async () => {
    const socket = await dial(upgrade());
    expect(await read(socket, "\r\n\r\n")).toMatch(/^HTTP\/1.1 502 [^]*not_listening/i);
    await once(socket, "close");
  });

  test("passes upgrades on API names to the APIs, and treats unknown upgrades and h2c as ordinary requests", async () => {
    await guest((_request, response) => response.end("plain"));
    const api = upgrade().replace(host, "127.0.0.1");
    expect(await read(await dial(api), "APIs")).toMatch(/^HTTP\/1.1 200/);
    expect(await read(await dial(api.replace("/ws", "/v1/socket")), "APIs")).toMatch(/^HTTP\/1.1 101/);
    const mine = upgrade().replace("/ws", "/v1/socket");
    expect(await read(await dial(mine), "plain")).toMatch(/^HTTP\/1.1 200/);
    const h2c = upgrade("HTTP2-Settings: AAMAAABkAAQAAP__\r\n").replace("websocket", "h2c");
    expect(await read(await dial(h2c), "plain")).toMatch(/^HTTP\/1.1 200/);
  });
});

describe("access to previews", () => {
  const token = "the-token-of-abc";

  beforeEach(async () => {
    preview = { token, state: "paused", wakes: true };
    wake = async () => {
      preview = { token, state: "running", machine: "m2" };
    };
    await guest((request, response) => response.end(JSON.stringify([request.url, request.headers])));
  });

  test("refuses a visitor without the token, and does not wake a paused sandbox", async () => {
    const { status, headers, body } = await get("/?svc_preview_token=wrong", {
      headers: { cookie: "svc_preview_token=", "x-service-preview-token": `${token}x` },
    });
    expect([status, headers["x-kontor-error"]]).toEqual([401, "unauthorized"]);
    expect(JSON.parse(body)).toMatchObject({ code: "unauthorized" });
    expect(woken + dialled).toBe(0);
    const page = await get("/", { headers: { accept: "text/html,*/*" } });
    expect(page.headers["content-type"]).toBe("text/html; charset=utf-8");
  });

  test.each([
    ["header", "/p", { "x-service-preview-token": token }],
    ["cookie", "/p", { cookie: `svc_preview_token=${token}` }],
    ["query", `/p?svc_preview_token=${token}`, {}],
  ])("accepts the token in the %s, and hides it from the guest", async (where, path, headers) => {
    const answer = await get(path, {
      headers: { ...headers, referer: `https://${host}/?svc_preview_token=${token}` },
    });
    expect(answer.status).toBe(200);
    expect(answer.body).toContain('["/p",');
    expect(answer.body).not.toContain(token);
    const cookies =
      where === "query" ? [`svc_preview_token=${token}; Path=/; HttpOnly; SameSite=Lax`] : undefined;
    expect(answer.headers["set-cookie"]).toEqual(cookies);
    expect(woken).toBe(1);
  });
});

describe("unavailable previews", () => {
  const refusal = async (options?: http.RequestOptions) => {
    const { status, headers, body } = await get("/", options);
    return [status, headers["x-kontor-error"], JSON.parse(body).code];
  };

  test("shows each reason with its status and code", async () => {
    expect(await refusal()).toEqual([502, "not_listening", "not_listening"]);
    preview = { token: null, state: "paused", wakes: false };
    expect(await refusal()).toEqual([503, "paused", "paused"]);
    preview = { token: null, state: "terminated", detail: "The sandbox is terminated: it was deleted." };
    expect(await refusal()).toEqual([410, "terminated", "terminated"]);
    preview = undefined;
    expect(await refusal()).toEqual([404, "not_found", "not_found"]);
  });

  test("explains on the page of a silent port how to start a server, and reloads", async () => {
    const { body, headers } = await get("/", { headers: { accept: "text/html" } });
    expect(body).toContain("http.server 3000");
    expect(body).toContain('http-equiv="refresh"');
    expect(headers["cache-control"]).toBe("no-store");
  });

  test("looks up the machine again after it disappeared, and sends the request to its successor", async () => {
    await guest((request, response) => request.pipe(response));
    connectFails = { kind: "not_running" };
    onAfresh = () => {
      connectFails = undefined;
      preview = { token: null, state: "running", machine: "m2" };
    };
    expect((await answerOf(send("/", { method: "POST" }, "kept"))).body).toBe("kept");
    expect(dialled).toBe(2);
  });

  test("stops the look-ups for a machine that does not return", async () => {
    connectFails = { kind: "machine_died" };
    expect(await refusal()).toEqual([503, "unavailable", "unavailable"]);
    expect(dialled).toBeLessThan(10);
  });

  test("ends the wait of a visitor who disconnects during a wake-up, without a request to the guest", async () => {
    await guest((_request, response) => response.end("ok"));
    preview = { token: null, state: "paused", wakes: true };
    const awake = Promise.withResolvers<void>();
    wake = () => awake.promise;
    const left = Array.from({ length: 200 }, () => send("/"));
    await vi.waitFor(() => expect(woken).toBe(200), { timeout: 10_000 });
    for (const request of left) request.destroy();
    await vi.waitFor(async () => {
      const open = await new Promise((resolve) => server.getConnections((_error, count) => resolve(count)));
      expect(open).toBe(0);
    });
    preview = { token: null, state: "running", machine: "m2" };
    awake.resolve();
    await vi.waitFor(async () => expect((await get("/")).body).toBe("ok"));
    expect(dialled).toBe(1);
  });

  test("refuses requests above the limit of a sandbox, without an effect on others", async () => {
    await guest(() => {});
    const waiting = Array.from({ length: 200 }, () => send("/"));
    onTestFinished(() => waiting.forEach((request) => request.destroy()));
    await vi.waitFor(() => expect(dialled).toBe(200), { timeout: 10_000 });
    expect(await refusal()).toEqual([503, "busy", "busy"]);
    expect((await get("/", { headers: { host: `files-abc.sbx.${domain}` } })).status).toBe(200);
    for (const request of waiting) request.destroy();
    await guest((_request, response) => response.end("ok"));
    await vi.waitFor(async () => expect((await get("/")).body).toBe("ok"), { timeout: 10_000 });
  });
});
