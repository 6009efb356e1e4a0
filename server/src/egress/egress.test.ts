/**
 * Tests the proxy and the resolver on loopback. Each address of 127.0.0.0/8 stands for a machine. A test resolver
 * replaces the public DNS, and loopback is opened as a private range. Tests that need real addresses are in e2e.
 */
import dgram from "node:dgram";
import dns from "node:dns/promises";
import { EventEmitter, once } from "node:events";
import http from "node:http";
import net from "node:net";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { readQuestion, writeResponse, type Question } from "./dns-message.ts";
import { Egress } from "./egress.ts";

const MACHINE = "127.0.0.2";
const OTHER_MACHINE = "127.0.0.3";
const NO_MACHINE = "127.0.0.9";

const machines: Record<string, string> = { [MACHINE]: "m1", [OTHER_MACHINE]: "m2" };
/** Records of the test resolver. A name without an entry does not exist. */
const names: Record<string, string[]> = {};
const asked: string[] = [];
const log: string[] = [];
const denials: string[] = [];
let lists: Record<string, readonly string[]> = {};
const reads = new EventEmitter();
/** Reads of allowlists wait for this promise. */
let readsWait: Promise<void> | undefined;

let egress: Egress;
let ports: { proxyPort: number; dnsPort: number };
let world: dgram.Socket;
let echo: net.Server;
let web: http.Server;
/** A web server that records each byte it receives. */
let raw: net.Server;
let rawSeen = "";
let rawSays = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

beforeAll(async () => {
  world = dgram.createSocket("udp4").bind(0, "127.0.0.1");
  await once(world, "listening");
  world.on("message", (message, from) => {
    const question = readQuestion(message) as Question;
    asked.push(question.name);
    const addresses = names[question.name];
    world.send(writeResponse(question, addresses ? "ok" : "noSuchName", addresses), from.port, from.address);
  });
  echo = net.createServer((socket) => socket.on("error", () => {}).pipe(socket)).listen(0, "127.0.0.1");
  web = http.createServer((request, response) => {
    response.setHeader("Connection", "x-secret");
    response.setHeader("X-Secret", "between us");
    response.setHeader("X-Kept", "yes");
    request.pipe(response);
  });
  web.listen(0, "127.0.0.1");
  raw = net.createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (data) => {
      rawSeen += data.toString("latin1");
      if (rawSeen.includes("\r\n\r\n")) socket.write(rawSays);
    });
  });
  raw.listen(0, "127.0.0.1");
  for (const server of [echo, web, raw]) if (!server.listening) await once(server, "listening");
  egress = new Egress({
    allowlistOf: async (machine) => {
      const list = lists[machine];
      if (list === undefined) throw new Error("the database is away");
      reads.emit("begin");
      await readsWait;
      return list;
    },
    dnsServers: [`127.0.0.1:${world.address().port}`],
    privateHosts: ["127.0.0.1"],
    denied: (machine, { target, code }) => denials.push(`${machine} ${target} ${code}`),
    log: (_event, { code }) => log.push(String(code)),
  });
  ports = await egress.open("127.0.0.1", (address) => machines[address]);
});

afterAll(async () => {
  await egress.close();
  world.close();
  for (const server of [echo, web, raw]) server.close();
});

beforeEach(() => {
  for (const address of [MACHINE, OTHER_MACHINE]) egress.closeConnections(address);
  for (const name of Object.keys(names)) delete names[name];
  Object.assign(names, { "echo.test": ["127.0.0.1"], "web.test": ["127.0.0.1"], "raw.test": ["127.0.0.1"] });
  lists = {
    m1: [
      `echo.test:${portOf(echo)}`,
      `web.test:${portOf(web)}`,
      `raw.test:${portOf(raw)}`,
      "plain.test",
      "gone.test",
    ],
    m2: [],
  };
  asked.length = 0;
  log.length = 0;
  denials.length = 0;
  rawSeen = "";
  rawSays = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
});

const portOf = (server: net.Server) => (server.address() as net.AddressInfo).port;

function dialProxy(from = MACHINE): net.Socket {
  return net.connect({ host: "127.0.0.1", port: ports.proxyPort, localAddress: from }).on("error", () => {});
}

/** Returns all bytes until the proxy closes the connection, or until `enough` returns true. */
async function sendRaw(
  socket: net.Socket,
  bytes: string | Buffer,
  enough?: (got: string) => boolean,
): Promise<string> {
  let got = "";
  const done = new Promise<void>((resolve) => {
    const more = (data: Buffer) => {
      got += data.toString("latin1");
      if (enough?.(got)) resolve();
    };
    socket.on("data", more);
    socket.once("close", () => resolve());
    socket.once("end", () => resolve());
  });
  socket.write(bytes);
  await done;
  socket.removeAllListeners("data");
  return got;
}

async function ask(text: string, from = MACHINE): Promise<string> {
  const socket = dialProxy(from);
  const got = await sendRaw(socket, text);
  socket.destroy();
  return got;
}

const connect = (authority: string, from = MACHINE) =>
  ask(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`, from);
const get = (url: string, more = "") =>
  ask(`GET ${url} HTTP/1.1\r\nHost: ignored.test\r\nConnection: close\r\n${more}\r\n`);
const statusOf = (answer: string) => Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1]);

/** Builds a hello for this name; its other fields do not matter. */
function hello(name: string): Buffer {
  const withLength = (width: number, content: Buffer) => {
    const length = Buffer.alloc(width);
    length.writeUIntBE(content.length, 0, width);
    return Buffer.concat([length, content]);
  };
  const entry = Buffer.concat([Buffer.from([0]), withLength(2, Buffer.from(name))]);
  const extension = Buffer.concat([Buffer.from([0, 0]), withLength(2, withLength(2, entry))]);
  const parts = [
    Buffer.alloc(34, 3),
    Buffer.from([0]),
    withLength(2, Buffer.from("1301", "hex")),
    Buffer.from([1, 0]),
  ];
  const body = Buffer.concat([...parts, withLength(2, name === "" ? Buffer.alloc(0) : extension)]);
  return Buffer.concat([
    Buffer.from("160301", "hex"),
    withLength(2, Buffer.concat([Buffer.from([1]), withLength(3, body)])),
  ]);
}

/** Opens a tunnel through the proxy. */
async function openTunnel(authority: string): Promise<net.Socket> {
  const socket = dialProxy();
  const answer = await sendRaw(socket, `CONNECT ${authority} HTTP/1.1\r\n\r\n`, (got) =>
    got.includes("\r\n\r\n"),
  );
  expect(answer).toContain("HTTP/1.1 200 ");
  return socket;
}

test("passes TLS for the requested name through a tunnel unchanged, in both directions", async () => {
  const socket = await openTunnel(`ECHO.test.:${portOf(echo)}`);
  const first = hello("echo.test");
  const more = Buffer.alloc(300_000, "x");
  const back = await sendRaw(
    socket,
    Buffer.concat([first, more]),
    (got) => got.length >= first.length + more.length,
  );
  expect(back).toBe(Buffer.concat([first, more]).toString("latin1"));
  socket.destroy();
});

test.each([["another.test"], [""], ["sub.echo.test"], ["echo.test\0"]])(
  "refuses TLS for the name %j in a tunnel to echo.test with an alert, and sends nothing out",
  async (name) => {
    const socket = await openTunnel(`echo.test:${portOf(echo)}`);
    expect(await sendRaw(socket, hello(name))).toBe("\x15\x03\x01\x00\x02\x02\x31");
    socket.destroy();
    expect(log).toEqual(["wrong_server_name"]);
    expect(egress.deniedCount(MACHINE)).toBe(1);
  },
);

test("refuses a tunnel for anything but TLS", async () => {
  const socket = await openTunnel(`echo.test:${portOf(echo)}`);
  expect(await sendRaw(socket, "SSH-2.0-OpenSSH_9.2\r\n")).toBe("\x15\x03\x01\x00\x02\x02\x31");
  socket.destroy();
});

test("releases everything when a client disconnects in the middle of its hello", async () => {
  const socket = await openTunnel(`echo.test:${portOf(echo)}`);
  const connections = () =>
    new Promise<number>((resolve) => echo.getConnections((_, count) => resolve(count)));
  expect(await connections()).toBe(1);
  socket.write(hello("echo.test").subarray(0, 20));
  socket.destroy();
  await expect.poll(connections).toBe(0);
});

test.each([
  ["evil.test:443", "not_allowed"],
  ["web.test.evil.test:443", "not_allowed"],
  ["127.0.0.1:443", "address"],
  ["[::1]:443", "address"],
  ["[::ffff:127.0.0.1]:443", "address"],
  ["2130706433:443", "address"],
  ["0x7f.1:443", "address"],
  ["web.test:22", "wrong_port"],
  ["web.test:443", "wrong_port"],
])("refuses CONNECT to %s (%s) with the reason, and counts it", async (authority, code) => {
  const answer = await connect(authority);
  expect(statusOf(answer)).toBe(403);
  expect(answer).toContain(`X-Kontor-Error: egress_${code}\r\n`);
  expect(answer.split("\r\n\r\n")[1]).toMatch(/^Kontor egress proxy: .{20}/);
  expect(egress.deniedCount(MACHINE)).toBe(1);
  expect(asked).toEqual([]);
});

test.each([
  ["10.0.0.1"],
  ["169.254.169.254"],
  ["127.0.0.2"],
  ["100.64.0.2"],
  ["192.168.1.1"],
  ["0.0.0.0"],
  ["224.0.0.1"],
])("refuses a name that resolves to %s, alone or beside a public address", async (address) => {
  for (const addresses of [[address], ["198.51.100.1", address]]) {
    names["plain.test"] = addresses;
    expect(await connect("plain.test:443")).toContain("egress_private_address");
    expect(await get("http://plain.test/")).toContain("egress_private_address");
  }
});

test("returns 502 for a name that does not exist, without counting it", async () => {
  expect(statusOf(await connect("gone.test:443"))).toBe(502);
  expect(egress.deniedCount(MACHINE)).toBe(0);
});

test("denies everything without a list, and returns 503 while lists cannot be read", async () => {
  expect(await connect(`web.test:${portOf(web)}`, OTHER_MACHINE)).toContain("egress_not_allowed");
  const list = lists["m1"] as readonly string[];
  delete lists["m1"];
  expect(statusOf(await connect(`web.test:${portOf(web)}`))).toBe(503);
  lists["m1"] = list;
  expect(statusOf(await get(`http://web.test:${portOf(web)}/`))).toBe(200);
  expect(await connect("evil.test:443", NO_MACHINE)).toBe("");
});

test("forwards plain HTTP with its body, without hop-by-hop headers", async () => {
  const answer = await ask(
    `POST http://raw.test:${portOf(raw)}/a?b=c HTTP/1.1\r\nHost: evil.test\r\nContent-Length: 5\r\nConnection: close, X-Mine\r\n` +
      `X-Mine: 1\r\nProxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nUpgrade: h2c\r\nX-Kept: 2\r\n\r\nhello`,
  );
  expect(answer).toContain("\r\n\r\nok");
  expect(rawSeen).toBe(
    `POST /a?b=c HTTP/1.1\r\nHost: raw.test:${portOf(raw)}\r\nX-Kept: 2\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello`,
  );
});

test("returns a response with its body, without hop-by-hop headers", async () => {
  const answer = await ask(
    `POST http://web.test:${portOf(web)}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n`,
  );
  expect(answer).toContain("X-Kept: yes");
  expect(answer).not.toContain("X-Secret");
  expect(answer).toMatch(/abc/);
});

test.each([
  ["two lengths", "Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"],
  [
    "a length and chunks",
    "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    "0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
  ],
  ["an odd coding", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"],
  ["chunked, but not last", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"],
  ["a space before the colon", "Content-Length : 3\r\n", "abc"],
  ["a folded line", "X: a\r\n b\r\n", ""],
  ["a bare carriage return", "X: a\rContent-Length: 3\r\n", "abc"],
])("does not forward an ambiguous request: %s", async (_, headers, body) => {
  const answer = await ask(
    `POST http://raw.test:${portOf(raw)}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n${headers}\r\n${body}`,
  );
  expect(statusOf(answer)).toBe(400);
  expect(rawSeen).toBe("");
});

test("accepts one request per connection, and ignores all bytes after it", async () => {
  const url = `http://raw.test:${portOf(raw)}`;
  let upstream = 0;
  const count = () => (upstream += 1);
  raw.on("connection", count);
  const answer = await ask(
    `GET ${url}/1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n` +
      `GET ${url}/2 HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(20_000) +
      `CONNECT raw.test:${portOf(raw)} HTTP/1.1\r\n\r\n`,
  );
  raw.off("connection", count);
  expect(answer.match(/HTTP\/1\.1 \d+/g)).toEqual(["HTTP/1.1 200"]);
  expect(answer).toMatch(/Connection: close/i);
  expect(upstream).toBe(1);
  expect(rawSeen).toContain("Transfer-Encoding: chunked");
  expect(rawSeen.match(/ HTTP\/1\.1\r\n/g)).toHaveLength(1);
});

test("forwards a GET without a body, and adds no body", async () => {
  await get(`http://raw.test:${portOf(raw)}?q=1`);
  expect(rawSeen).toBe(`GET /?q=1 HTTP/1.1\r\nHost: raw.test:${portOf(raw)}\r\nConnection: close\r\n\r\n`);
});

test("never presents a truncated response as complete", async () => {
  rawSays = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nhalf";
  const ends = (socket: net.Socket) => setTimeout(() => socket.destroy(), 50);
  raw.once("connection", ends);
  const answer = await get(`http://raw.test:${portOf(raw)}/`);
  expect(answer).toContain("Content-Length: 10");
  expect(answer.split("\r\n\r\n")[1]).toBe("half");
});

test.each([
  ["https://web.test/", 400, "use_connect"],
  ["ftp://web.test/", 400, "use_connect"],
  ["/", 400, "use_connect"],
  ["http://user@web.test/", 400, "bad_request"],
  ["http://127.0.0.1/", 403, "address"],
  ["http://[::1]/", 403, "address"],
  ["http://evil.test/", 403, "not_allowed"],
  ["http://plain.test:8080/", 403, "wrong_port"],
])("responds to GET %s with %s (%s)", async (url, status, code) => {
  const answer = await get(url);
  expect(statusOf(answer)).toBe(status);
  expect(answer.toLowerCase()).toContain(`x-kontor-error: egress_${code}`);
});

test("returns an error for malformed HTTP, and closes the connection", async () => {
  expect(statusOf(await ask("\x16\x03\x01\x02\x00\x01\r\n\r\n"))).toBe(400);
  expect(statusOf(await ask(`GET http://web.test/ HTTP/1.1\r\nX: ${"x".repeat(20_000)}\r\n\r\n`))).toBe(400);
});

test("closes only the connections of a machine that is no longer restricted, and resets its count", async () => {
  lists["m2"] = lists["m1"] as readonly string[];
  const mine = await openTunnel(`echo.test:${portOf(echo)}`);
  await sendRaw(mine, hello("echo.test"), () => true);
  const other = dialProxy(OTHER_MACHINE);
  await sendRaw(other, `CONNECT echo.test:${portOf(echo)} HTTP/1.1\r\n\r\n`, (got) => got.includes("200"));
  await sendRaw(other, hello("echo.test"), () => true);
  await connect("evil.test:443");
  expect(egress.deniedCount(MACHINE)).toBe(1);

  const closed = once(mine, "close");
  egress.closeConnections(MACHINE);
  await closed;
  expect(egress.deniedCount(MACHINE)).toBe(0);
  expect(await sendRaw(other, "still there", (got) => got.includes("still there"))).toContain("still there");
  other.destroy();
});

test("closes connections to hosts that left a reloaded list, and keeps the others", async () => {
  names["kept.test"] = ["127.0.0.1"];
  const [echoed, kept] = [`echo.test:${portOf(echo)}`, `kept.test:${portOf(echo)}`];
  lists["m1"] = [echoed, kept];
  const leaves = await openTunnel(echoed);
  await sendRaw(leaves, hello("echo.test"), () => true);
  const stays = await openTunnel(kept);
  await sendRaw(stays, hello("kept.test"), () => true);
  const closed = once(leaves, "close");
  lists["m1"] = [kept];
  await egress.reload("m1");
  await closed;
  expect(await sendRaw(stays, "still there", (got) => got.includes("still there"))).toContain("still there");
  stays.destroy();
  expect(await connect(echoed)).toContain("egress_not_allowed");
  lists["m1"] = [echoed];
  await egress.reload("m1");
  (await openTunnel(echoed)).destroy();
});

test("checks a waiting connection against the new list when a reload interrupts the read", async () => {
  const old = Promise.withResolvers<void>();
  readsWait = old.promise;
  const begun = once(reads, "begin");
  const answer = connect(`echo.test:${portOf(echo)}`);
  await begun;
  readsWait = undefined;
  lists["m1"] = [];
  await egress.reload("m1");
  old.resolve();
  expect(await answer).toContain("egress_not_allowed");
});

test("closes all connections of a machine when its reloaded list cannot be read", async () => {
  const socket = await openTunnel(`echo.test:${portOf(echo)}`);
  const closed = once(socket, "close");
  delete lists["m1"];
  await egress.reload("m1");
  await closed;
});

test("reports each machine's denied targets as host and port, and no failed connection", async () => {
  await connect("EVIL.test:8443");
  await get("http://evil.test/path?secret=1");
  await connect("127.0.0.1:22", OTHER_MACHINE);
  await connect("gone.test:443");
  const resolver = new dns.Resolver({ timeout: 2_000, tries: 1 });
  resolver.setLocalAddress(MACHINE);
  resolver.setServers([`127.0.0.1:${ports.dnsPort}`]);
  await expect(resolver.resolve4("looked-up.test")).rejects.toMatchObject({ code: "EREFUSED" });
  expect(denials).toEqual([
    "m1 evil.test:8443 not_allowed",
    "m1 evil.test:80 not_allowed",
    "m2 127.0.0.1:22 address",
    "m1 looked-up.test not_allowed",
  ]);
});

test("resets and counts a connection above a machine's limit, without an effect on other machines", async () => {
  const held = Array.from({ length: 256 }, () => dialProxy());
  await Promise.all(held.map((socket) => once(socket, "connect")));
  const one = dialProxy();
  await new Promise((resolve) => one.once("close", resolve));
  expect(egress.deniedCount(MACHINE)).toBe(1);
  expect(statusOf(await connect("evil.test:443", OTHER_MACHINE))).toBe(403);
  for (const socket of held) socket.destroy();
});

test("resolves an allowed name to its own addresses only, and refuses any other without a query", async () => {
  const resolver = new dns.Resolver({ timeout: 2_000, tries: 1 });
  // Queries come from 127.0.0.1 unless the test sets another address.
  resolver.setLocalAddress(MACHINE);
  resolver.setServers([`127.0.0.1:${ports.dnsPort}`]);
  names["plain.test"] = ["198.51.100.7"];
  expect(await resolver.resolve4("plain.test")).toEqual(["198.51.100.7"]);
  expect(asked).toEqual(["plain.test"]);
  await expect(resolver.resolve6("plain.test")).rejects.toMatchObject({ code: "ENODATA" });
  await expect(resolver.resolveTxt("plain.test")).rejects.toMatchObject({ code: "ENODATA" });
  await expect(resolver.resolve4("gone.test")).rejects.toMatchObject({ code: "ENOTFOUND" });
  asked.length = 0;
  for (const name of ["c2VjcmV0.tunnel.test", "c2VjcmV0.plain.test", "localhost"]) {
    await expect(resolver.resolve4(name), name).rejects.toMatchObject({ code: "EREFUSED" });
  }
  names["plain.test"] = ["10.0.0.1"];
  await expect(resolver.resolve4("plain.test")).rejects.toMatchObject({ code: "EREFUSED" });
  expect(asked).toEqual(["plain.test"]);
  expect(egress.deniedCount(MACHINE)).toBe(4);
});
