import { once } from "node:events";
import http, { type IncomingMessage, type RequestListener } from "node:http";
import net, { type AddressInfo, BlockList, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type AppRoute, AppSites } from "./apps.ts";
import { Ingress } from "../ingress.ts";
import { Upstreams } from "./upstreams.ts";
import { VisitFailed } from "../proxy/probe-visit.ts";

const domain = "apps.test";
const shop = `shop.${domain}`;
const other = `other.${domain}`;
const custom = "www.customer.test";

/** Machines, each with the server that listens in it. */
let machines: Map<string, http.Server>;
let sockets: Set<Socket>;
let routes: Map<string, AppRoute>;
let observed: { environment: string; status: number; ms: number }[];
let wakes: number;
let wake: (environment: string) => Promise<void>;
let dialled: string[];
/** Runs before each connection to a machine. */
let onDial: (machine: string) => void;
let upstreams: Upstreams;
let sites: AppSites;
let ingress: Ingress;
let server: http.Server;
const proxies = new BlockList();

beforeEach(async () => {
  [machines, sockets, routes] = [new Map(), new Set(), new Map()];
  [observed, dialled, wakes] = [[], [], 0];
  wake = async () => {};
  onDial = () => {};
  const connect = async (machine: string, port: number) => {
    dialled.push(machine);
    onDial(machine);
    const inside = machines.get(machine);
    if (inside === undefined) throw Object.assign(new Error("gone"), { kind: "machine_died" });
    if (port === 1) throw Object.assign(new Error("refused"), { kind: "connection_refused" });
    const socket = net.connect((inside.address() as AddressInfo).port, "127.0.0.1");
    await once(socket, "connect");
    return socket;
  };
  upstreams = new Upstreams(connect);
  sites = new AppSites({
    domain,
    apps: {
      find: (host) => routes.get(host),
      wake: (environment) => {
        wakes += 1;
        return wake(environment);
      },
      recordResponse: (environment, seen) => observed.push({ environment, ...seen }),
    },
    custom: { generatedOf: (host) => (host === custom ? shop : undefined) },
    upstreams,
    limits: { perApp: 60, wakeMs: 300 },
  });
  ingress = new Ingress({
    rules: [sites],
    domains: [domain],
    apiHost: null,
    certificates: null,
    tlsSuffix: "",
    trustedProxies: proxies,
    log: () => {},
  });
  server = ingress.createServer({
    handle: (_request, response) => void response.end("the APIs"),
    upgrade: (_request, socket) => void socket.destroy(),
    clientError: (error, socket) =>
      void socket.end(`HTTP/1.1 ${error.code === "ERR_HTTP_REQUEST_TIMEOUT" ? 408 : 400} No\r\n\r\n`),
    options: {
      keepAliveTimeout: 5_000,
      maxHeaderSize: 16 * 1024,
      headersTimeout: 200,
      connectionsCheckingInterval: 50,
      requestTimeout: 0,
      shouldUpgradeCallback: () => false,
    },
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  await machine("m1", (_request, response) => response.end("one"));
  live(shop, "m1");
});

afterEach(async () => {
  upstreams.endAll();
  await ingress.close(0);
  for (const inside of machines.values()) inside.closeAllConnections();
  for (const inside of machines.values()) inside.close();
  for (const socket of sockets) socket.destroy();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

async function machine(id: string, answer: RequestListener): Promise<http.Server> {
  const inside = http.createServer(answer);
  inside.on("connection", (socket: Socket) => sockets.add(socket));
  await new Promise<void>((resolve) => inside.listen(0, "127.0.0.1", resolve));
  machines.set(id, inside);
  return inside;
}

function live(host: string, machineId: string, port = 8080): void {
  routes.set(host, { environmentId: `env of ${host}`, state: "live", machine: machineId, port });
}

function without(host: string, state: "asleep" | "down", port: number | null = 8080): void {
  routes.set(host, { environmentId: `env of ${host}`, state, machine: null, port });
}

/** Closes the server as if the machine were removed. */
function remove(id: string): void {
  machines.get(id)?.close();
  machines.get(id)?.closeAllConnections();
  machines.delete(id);
  upstreams.end(id);
}

function ask(
  path = "/",
  options: http.RequestOptions & { body?: string; host?: string } = {},
): http.ClientRequest {
  const { body, host = shop, ...rest } = options;
  const request = http.request({
    port: (server.address() as AddressInfo).port,
    agent: false,
    path,
    ...rest,
    headers: { host, ...(rest.headers as object) },
  });
  request.on("error", () => {});
  request.end(body);
  return request;
}

async function get(path?: string, options?: Parameters<typeof ask>[1]) {
  const [incoming] = (await once(ask(path, options), "response")) as [IncomingMessage];
  let body = "";
  for await (const piece of incoming) body += String(piece);
  return { status: incoming.statusCode, headers: incoming.headers, body };
}

/** Opens a WebSocket through which each side echoes the other's bytes. */
async function webSocket(host: string): Promise<Socket> {
  const socket = net.connect((server.address() as AddressInfo).port, "127.0.0.1");
  socket.on("error", () => {});
  socket.write(`GET /ws HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`);
  const [head] = (await once(socket, "data")) as [Buffer];
  expect(head.toString()).toMatch(/^HTTP\/1.1 101/);
  return socket;
}

function echoes(inside: http.Server): void {
  inside.on("upgrade", (_request, socket) => {
    socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    socket.on("error", () => {});
    socket.pipe(socket);
  });
}

describe("traffic", () => {
  test("counts requests, responses and both directions of a WebSocket for the app", async () => {
    const traffic = { rxBytes: 0, txBytes: 0 };
    const inside = await machine("m2", (request, response) =>
      request.on("end", () => response.end("a".repeat(3000))).resume(),
    );
    echoes(inside);
    const route = { environmentId: "e", state: "live", machine: "m2", port: 8080, traffic } as const;
    routes.set(shop, route);
    await get("/", { method: "POST", body: "b".repeat(5000) });
    expect([traffic.rxBytes, traffic.txBytes]).toEqual([
      expect.toSatisfy((bytes: number) => bytes > 5000 && bytes < 6000),
      expect.toSatisfy((bytes: number) => bytes > 3000 && bytes < 3500),
    ]);
    const before = { ...traffic };
    const socket = await webSocket(shop);
    socket.write("c".repeat(2000));
    let echoed = 0;
    for await (const piece of socket) if ((echoed += (piece as Buffer).length) === 2000) break;
    expect(traffic.rxBytes - before.rxBytes).toBeGreaterThan(2000);
    expect(traffic.txBytes - before.txBytes).toBeGreaterThan(2000);
  });
});

describe("names", () => {
  test("serves an app by its name, and 404 instead of the APIs for an unknown name below our domain", async () => {
    expect((await get("/", { host: `${shop.toUpperCase()}:8443` })).body).toBe("one");
    for (const host of [`nobody.${domain}`, `a.${shop}`]) {
      const { status, headers } = await get("/", { host });
      expect([status, headers["x-kontor-error"]]).toEqual([404, "not_found"]);
    }
    expect((await get("/", { host: domain })).body).toBe("the APIs");
  });

  test("serves a custom name like the generated one, and sends HSTS only for the custom name", async () => {
    expect((await get("/", { host: custom })).body).toBe("one");
    expect((await get("/", { host: custom })).headers["strict-transport-security"]).toBeUndefined();
    proxies.addAddress("127.0.0.1");
    const bySafe = { "x-forwarded-proto": "https" };
    expect((await get("/", { host: custom, headers: bySafe })).headers["strict-transport-security"]).toBe(
      "max-age=31536000",
    );
    expect((await get("/", { headers: bySafe })).headers["strict-transport-security"]).toBeUndefined();
  });

  test("requests a certificate only for names of apps", async () => {
    expect(await ingress.isServed(custom)).toBe(true);
    expect(await ingress.isServed(shop)).toBe(true);
    routes.delete(shop);
    expect(await ingress.isServed(custom)).toBe(false);
    expect(await ingress.isServed(shop)).toBe(false);
  });
});

describe("requests and responses", () => {
  test("sends one request id, the visitor's own or a new one, to the app, in the response and on error pages", async () => {
    const seen: (string | string[] | undefined)[] = [];
    await machine("m1", (request, response) => {
      seen.push(request.headers["x-request-id"]);
      response.setHeader("x-request-id", "the app's own");
      response.end();
    });
    const own = await get("/", { headers: { "x-request-id": "abc-1.2_3" } });
    expect([seen[0], own.headers["x-request-id"]]).toEqual(["abc-1.2_3", "abc-1.2_3"]);
    const made = await get("/", { headers: { "x-request-id": "no good\tid" } });
    expect(made.headers["x-request-id"]).toMatch(/^[0-9a-f-]{36}$/);
    expect(seen[1]).toBe(made.headers["x-request-id"]);
    without(shop, "down");
    const page = await get("/", { headers: { "x-request-id": "page" } });
    expect(page.headers["x-request-id"]).toBe("page");
  });

  test("ends the connection for oversized or unfinished headers, without a request to the app", async () => {
    const port = (server.address() as AddressInfo).port;
    const says = async (text: string) => {
      const socket = net.connect(port, "127.0.0.1");
      socket.write(text);
      let got = "";
      for await (const piece of socket) got += String(piece);
      return got;
    };
    expect(await says(`GET / HTTP/1.1\r\nHost: ${shop}\r\nX: ${"a".repeat(20_000)}\r\n\r\n`)).toMatch(
      /^HTTP\/1.1 431/,
    );
    expect(await says(`GET / HTTP/1.1\r\nHost: ${shop}\r\nX: slow`)).toMatch(/^HTTP\/1.1 408/);
    expect(await says("")).toMatch(/^HTTP\/1.1 408/);
    expect(dialled).toEqual([]);
  });

  test("refuses a body with an oversized Content-Length before the app gets the request", async () => {
    const { status, headers } = await get("/", {
      method: "POST",
      headers: { "content-length": String(1024 ** 3 + 1) },
    });
    expect([status, headers["x-kontor-error"]]).toEqual([413, "too_large"]);
    expect(dialled).toEqual([]);
  });
});

describe("choice of the machine", () => {
  test("loses no request during a switch under load that removes the old machine after its drain", async () => {
    const name = (id: string): RequestListener => {
      return (request, response) => {
        request.resume();
        setTimeout(() => response.end(id), 2);
      };
    };
    await machine("m1", name("m1"));
    const agent = new http.Agent({ keepAlive: true });
    const answers: Promise<number | undefined>[] = [];
    let isOver = false;
    const load = (async () => {
      for (let n = 0; !isOver; n += 1) {
        const isKept = n % 2 === 0;
        const options = { ...(isKept ? { agent } : {}), method: n % 3 === 0 ? "POST" : "GET" };
        answers.push(
          get(`/${n}`, { ...options, ...(n % 3 === 0 ? { body: "b" } : {}) }).then(({ status }) => status),
        );
        await sleep(1);
      }
    })();
    for (let deployment = 2; deployment <= 11; deployment += 1) {
      const before = `m${deployment - 1}`;
      await expect.poll(() => dialled).toContain(before);
      await machine(`m${deployment}`, name(`m${deployment}`));
      live(shop, `m${deployment}`);
      expect(await sites.waitUntilDrained(before, 5_000)).toBe(true);
      remove(before);
    }
    await expect.poll(() => dialled).toContain("m11");
    isOver = true;
    await load;
    expect(new Set(await Promise.all(answers))).toEqual(new Set([200]));
    agent.destroy();
  });

  test("looks up the machine again when it disappears before the connection, also for a POST", async () => {
    await machine("m2", (request, response) => request.pipe(response));
    onDial = (id) => {
      if (id !== "m1") return;
      remove("m1");
      live(shop, "m2");
    };
    expect(await get("/", { method: "POST", body: "body" })).toMatchObject({ status: 200, body: "body" });
    expect(dialled).toEqual(["m1", "m2"]);
  });

  test("fails no request when a replaced machine stops listening, but reports a current machine that does not listen", async () => {
    live(shop, "m1", 1);
    onDial = () => live(shop, "m1", 8080);
    expect((await get()).body).toBe("one");
    live(shop, "m1", 1);
    onDial = () => {};
    const page = await get();
    expect([page.status, page.headers["x-kontor-error"]]).toEqual([502, "not_listening"]);
    expect(JSON.parse(page.body)).toMatchObject({ detail: expect.stringContaining("The app runs") });
  });

  test("repeats a read on the new machine when the old one dies, and reports the failure of a write", async () => {
    await machine("m2", (_request, response) => response.end("two"));
    await machine("m1", () => {
      live(shop, "m2");
      remove("m1");
    });
    expect((await get()).body).toBe("two");
    await machine("m1", () => {
      live(shop, "m2");
      remove("m1");
    });
    live(shop, "m1");
    expect((await get("/", { method: "POST", body: "b" })).status).toBe(502);
  });

  test("drains a machine when its last request, stream and WebSocket have ended, or reports a timeout", async () => {
    let release: () => void = () => {};
    await machine("m1", (_request, response) => {
      response.write("begun");
      release = () => response.end();
    });
    expect(await sites.waitUntilDrained("m1", 0)).toBe(true);
    const under = ask();
    await once(under, "response");
    expect(await sites.waitUntilDrained("m1", 20)).toBe(false);
    const drained = sites.waitUntilDrained("m1", 5_000);
    under.on("response", () => {});
    release();
    expect(await drained).toBe(true);
    expect(await sites.waitUntilDrained("m1", 0)).toBe(true);
  });

  test("keeps a WebSocket open while its own app or another app is switched", async () => {
    echoes(machines.get("m1")!);
    await machine("m2", (_request, response) => response.end("two"));
    const socket = await webSocket(shop);
    live(other, "m2");
    remove("m2");
    await machine("m3", (_request, response) => response.end("three"));
    live(other, "m3");
    live(shop, "m3");
    expect((await get()).body).toBe("three");
    socket.write("still here");
    expect(String((await once(socket, "data"))[0])).toBe("still here");
    expect(await sites.waitUntilDrained("m1", 10)).toBe(false);
    socket.destroy();
    expect(await sites.waitUntilDrained("m1", 5_000)).toBe(true);
  });
});

describe("apps that do not run", () => {
  test("shares one wake-up among fifty requests for a sleeping app", async () => {
    without(shop, "asleep");
    let up: () => void = () => {};
    const waking = new Promise<void>((resolve) => {
      up = () => {
        live(shop, "m1");
        resolve();
      };
    });
    wake = () => waking;
    const answers = Array.from({ length: 50 }, (_, n) =>
      get("/", n % 2 === 0 ? {} : { method: "POST", body: "b" }),
    );
    await expect.poll(() => wakes).toBe(50);
    expect(dialled).toEqual([]);
    up();
    expect((await Promise.all(answers)).every(({ status }) => status === 200)).toBe(true);
  });

  test("shows each reason with its status and code, to people and to programs", async () => {
    const readAll = async (accept = "*/*") => {
      const { status, headers, body } = await get("/", { headers: { accept } });
      return [status, headers["x-kontor-error"], body];
    };
    without(shop, "asleep");
    wake = () => new Promise(() => {});
    expect(await readAll()).toEqual([503, "asleep", expect.stringContaining('"code":"asleep"')]);
    wake = () => Promise.reject(new Error("no"));
    expect(await readAll()).toEqual([503, "unavailable", expect.any(String)]);
    wake = () => Promise.reject(Object.assign(new Error("no"), { code: "account_suspended" }));
    expect(await readAll()).toEqual([503, "suspended", expect.stringContaining('"code":"suspended"')]);
    without(shop, "down");
    expect(await readAll("text/html")).toEqual([
      503,
      "crashed",
      expect.stringContaining("<title>The app has crashed"),
    ]);
    without(shop, "down", null);
    expect(await readAll()).toEqual([404, "not_deployed", expect.any(String)]);
    live(shop, "m1");
    remove("m1");
    expect(await readAll()).toEqual([503, "unavailable", expect.any(String)]);
  });

  test("refuses requests above an app's limit, without an effect on other apps", async () => {
    await machine("m1", () => {});
    await machine("m2", (_request, response) => response.end("two"));
    live(other, "m2");
    const waiting = Array.from({ length: 60 }, () => ask());
    await expect.poll(() => dialled.length).toBe(60);
    expect((await get()).headers["x-kontor-error"]).toBe("busy");
    expect((await get("/", { host: other })).body).toBe("two");
    for (const request of waiting) request.destroy();
    expect(await sites.waitUntilDrained("m1", 5_000)).toBe(true);
  });
});

describe("observed requests", () => {
  test("observes each request once by its status, error pages and disconnected visitors included", async () => {
    let isAsked = false;
    await machine("m1", (request, response) => {
      isAsked = request.url === "/never";
      if (isAsked) return;
      response.writeHead(request.url === "/bad" ? 500 : 201);
      response.end();
    });
    echoes(machines.get("m1")!);
    await get();
    await get("/bad");
    without(shop, "down");
    await get();
    live(shop, "m1");
    (await webSocket(shop)).destroy();
    const leaving = ask("/never");
    await expect.poll(() => isAsked).toBe(true);
    leaving.destroy();
    await expect.poll(() => observed.map(({ status }) => status)).toEqual([201, 500, 503, 101, 499]);
    expect(observed.every(({ environment, ms }) => environment === `env of ${shop}` && ms >= 0)).toBe(true);
  });
});

test("shows that the last deployment failed, on a page that reloads", async () => {
  without(shop, "down");
  routes.set(shop, { ...routes.get(shop)!, port: null, hasFailed: true });
  const failed = await get("/", { headers: { accept: "text/html" } });
  expect(failed.headers["x-kontor-error"]).toBe("deploy_failed");
  expect(failed.body).toContain("The last deployment failed");
  expect(failed.body).toContain('http-equiv="refresh"');
  routes.set(shop, { ...routes.get(shop)!, hasFailed: false });
  const none = await get("/", { headers: { accept: "text/html" } });
  expect(none.headers["x-kontor-error"]).toBe("not_deployed");
  expect(none.body).toContain('http-equiv="refresh"');
});

describe("probe visits", () => {
  test("proves which machine a name leads to; the app neither sees the proof nor can forge it", async () => {
    let seen: IncomingMessage | undefined;
    await machine("m1", (request, response) => {
      seen = request;
      response.setHeader("x-kontor-machine", "m2");
      response.writeHead(404).end("x".repeat(100_000));
    });
    expect(await ingress.probe(shop, "/health?a=1", { machine: "m1" })).toEqual({ status: 404 });
    expect(seen?.url).toBe("/health?a=1");
    expect(Object.keys(seen?.headers ?? {}).filter((name) => name.startsWith("x-kontor"))).toEqual([]);
    await expect(ingress.probe(shop, "/", { machine: "m2" })).rejects.toThrow(/another machine responded/);
    expect(observed).toEqual([]);
    const visitor = await get("/", { headers: { "x-kontor-visit": "guessed" } });
    expect(visitor.headers["x-kontor-machine"]).toBeUndefined();
    expect(seen?.headers["x-kontor-visit"]).toBeUndefined();
  });

  test("reports why no machine responds, wakes no app and waits no longer than its limit", async () => {
    without(shop, "asleep");
    await expect(ingress.probe(shop, "/", { machine: "m1" })).rejects.toThrow(/status 503: asleep/);
    expect(wakes).toBe(0);
    await machine("m1", () => {});
    live(shop, "m1");
    await expect(ingress.probe(shop, "/", { machine: "m1", quietMs: 50 })).rejects.toThrow(VisitFailed);
    const gone = new AbortController();
    const visit = ingress.probe(shop, "/", { machine: "m1", signal: gone.signal });
    gone.abort(new Error("cancelled"));
    await expect(visit).rejects.toThrow("cancelled");
  });

  test("waits longer than the quiet time for a slow response while the machine works", async () => {
    const answer = Promise.withResolvers<void>();
    await machine("m1", (_request, response) => void answer.promise.then(() => response.end("slow")));
    let looks = 0;
    const hasProgressed = async () => {
      looks += 1;
      // The quiet time alone would end before the fourth poll.
      if (looks === 4) answer.resolve();
      return true;
    };
    const slow = { machine: "m1", quietMs: 200, hasProgressed };
    expect(await ingress.probe(shop, "/", slow)).toEqual({ status: 200 });
  });

  test("retries until the app listens, and ends when the app ends", async () => {
    await machine("m1", (_request, response) => response.end("here"));
    without(shop, "down");
    let looks = 0;
    const startOnSecondPoll = async () => {
      looks += 1;
      if (looks === 2) live(shop, "m1");
      return true;
    };
    const early = { machine: "m1", quietMs: 400, hasProgressed: startOnSecondPoll };
    expect(await ingress.probe(shop, "/", early)).toEqual({ status: 200 });
    without(shop, "down");
    const failPoll = async () => Promise.reject(new Error("the app ended with exit code 3"));
    await expect(
      ingress.probe(shop, "/", { machine: "m1", quietMs: 100, hasProgressed: failPoll }),
    ).rejects.toThrow("the app ended with exit code 3");
    await expect(ingress.probe(shop, "/", { machine: "m1", quietMs: 100 })).rejects.toThrow(
      /failed: status 503: crashed/,
    );
  });
});
