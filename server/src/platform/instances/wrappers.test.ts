import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { get, type IncomingMessage } from "node:http";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { type Runtime, serve as serveIn, type ServedHandler } from "./testing/wrapper.ts";

const directory = mkdtempSync(join(tmpdir(), "kontor-wrapper-"));
const running: ServedHandler[] = [];
afterEach(() => {
  for (const { child } of running.splice(0)) child.kill("SIGKILL");
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function serve(runtime: Runtime, code: string, options?: Parameters<typeof serveIn>[3]) {
  const served = await serveIn(directory, runtime, code, options);
  running.push(served);
  return served;
}

const id = { "x-request-id": "req-1" };
const error = async (answer: Response) => ((await answer.json()) as { error: unknown }).error;

const throwing = {
  nodejs: `export default () => { throw new Error("canary-4711"); };`,
  python: `def handler(request):\n    raise ValueError("canary-4711")\n`,
};
const nothing = {
  nodejs: `export default () => undefined;`,
  python: `def handler(request):\n    return None\n`,
};
const slow = {
  nodejs: `export default () => new Promise(() => {});`,
  python: `import time\ndef handler(request):\n    while True: time.sleep(0.01)\n`,
};
const length = {
  nodejs: `export default async (request) => ({ bytes: (await request.arrayBuffer()).byteLength });`,
  python: `def handler(request):\n    return {"bytes": len(request.body)}\n`,
};
const broken = { nodejs: `export default (request => {`, python: `def handler(request:\n` };
const missing = { nodejs: `export const other = 1;`, python: `other = 1\n` };
const stream = {
  nodejs: `export default () => {
    let next;
    globalThis.go = () => next();
    return new Response(new ReadableStream({
      async pull(controller) {
        controller.enqueue(new TextEncoder().encode("data: 1\\n\\n"));
        await new Promise((resolve) => setTimeout(resolve, 300));
        controller.enqueue(new Uint8Array([0, 255, 10]));
        controller.close();
      },
    }), { headers: { "content-type": "text/event-stream" } });
  };`,
  python: `import time
def handler(request):
    def pieces():
        yield "data: 1\\n\\n"
        time.sleep(0.3)
        yield bytes([0, 255, 10])
    return pieces(), 200, {"content-type": "text/event-stream"}
`,
};

describe.each(["nodejs", "python"] as const)("handlers in %s", (runtime) => {
  test("responds 500 with a code and the request id when a handler throws, and writes the stack trace only to the log", async () => {
    const served = await serve(runtime, throwing[runtime]);
    const answer = await fetch(served.url, { headers: id });
    expect(answer.status).toBe(500);
    const text = await answer.text();
    expect(JSON.parse(text)).toEqual({
      error: { code: "function_error", message: expect.any(String) as string, request_id: "req-1" },
    });
    expect(text).not.toContain("canary");
    const records = await served.waitForRecord(({ t }) => String(t).includes("canary-4711"));
    expect(records).toMatchObject({ l: "error", r: "req-1" });
  });

  test("responds 500 with the reason when a handler returns nothing", async () => {
    const { url } = await serve(runtime, nothing[runtime]);
    const answer = await fetch(url, { headers: id });
    expect(answer.status).toBe(500);
    expect(await error(answer)).toMatchObject({ code: "function_bad_response", request_id: "req-1" });
  });

  test("responds 504 when a handler exceeds its timeout, and serves the next request", async () => {
    const { url } = await serve(runtime, slow[runtime], { env: { KONTOR_TIMEOUT_MS: "300" } });
    for (let asked = 0; asked < 2; asked += 1) {
      const answer = await fetch(url, { headers: id });
      expect(answer.status).toBe(504);
      expect(await error(answer)).toMatchObject({ code: "function_timeout" });
    }
  });

  test("accepts a body at the size limit, and responds 413 to a larger one, with a length or in chunks", async () => {
    const { url } = await serve(runtime, length[runtime], { env: { KONTOR_MAX_BODY: "100000" } });
    const send = (bytes: number, isChunked: boolean) => {
      const body = Buffer.alloc(bytes, 7);
      const streamed = new ReadableStream({
        start(controller) {
          controller.enqueue(new Uint8Array(body));
          controller.close();
        },
      });
      return fetch(url, { method: "POST", body: isChunked ? streamed : body, duplex: "half" } as RequestInit);
    };
    for (const isChunked of [false, true]) {
      expect(await (await send(100_000, isChunked)).json()).toEqual({ bytes: 100_000 });
      const refused = await send(100_001, isChunked);
      expect(refused.status).toBe(413);
      expect(await error(refused)).toMatchObject({ code: "payload_too_large" });
    }
  });

  test("reports the reason and ends when its handler does not load", async () => {
    for (const code of [broken[runtime], missing[runtime]]) {
      const served = await serve(runtime, code, { isUp: false });
      expect(await served.ended).toBe(1);
      expect(served.records).toContainEqual({ k: "failed" });
      expect(served.records.some(({ l }) => l === "error")).toBe(true);
    }
  });

  test("streams a handler's response with its bytes unchanged", async () => {
    const { url } = await serve(runtime, stream[runtime]);
    const answer = await fetch(url);
    expect(answer.headers.get("content-type")).toBe("text/event-stream");
    const reader = (answer.body as ReadableStream<Uint8Array>).getReader();
    const first = await reader.read();
    expect(Buffer.from(first.value!).toString()).toBe("data: 1\n\n");
    const second = await reader.read();
    expect([...second.value!]).toEqual([0, 255, 10]);
    expect((await reader.read()).done).toBe(true);
  });
});

describe("handlers in Node.js", () => {
  test("calls a handler with a Request, and sends the returned Response with cookies and status text", async () => {
    const { url } = await serve(
      "nodejs",
      `export default async (request, { requestId }) => {
        const answer = new Response(JSON.stringify({
          isRequest: request instanceof Request, url: request.url, method: request.method,
          header: request.headers.get("x-own"), body: await request.json(), requestId,
        }), { status: 201, statusText: "Made", headers: { "content-type": "application/json" } });
        answer.headers.append("set-cookie", "a=1");
        answer.headers.append("set-cookie", "b=2");
        return answer;
      };`,
    );
    const answer = await fetch(`${url}/some/path?q=%C3%BC`, {
      method: "PUT",
      body: JSON.stringify([1, "ü"]),
      headers: { ...id, "x-own": "yes", "x-forwarded-proto": "https" },
    });
    expect([answer.status, answer.statusText]).toEqual([201, "Made"]);
    expect(answer.headers.getSetCookie()).toEqual(["a=1", "b=2"]);
    expect(await answer.json()).toEqual({
      isRequest: true,
      url: `${url.replace("http:", "https:")}/some/path?q=%C3%BC`,
      method: "PUT",
      header: "yes",
      body: [1, "ü"],
      requestId: "req-1",
    });
  });

  test("loads the handler after the wrapper's own requests, and hides them from the handler", async () => {
    const told = `import { subscribe } from "node:diagnostics_channel";
      subscribe("http.server.response.finish", ({ response }) => console.log("answered", response.statusCode));`;
    const preloaded = `--import=data:text/javascript,${encodeURIComponent(told)}`;
    const handler = `console.log("loaded"); let asked = 0; export default () => String((asked += 1));`;
    const served = await serve("nodejs", handler, { env: { NODE_OPTIONS: preloaded } });
    expect(served.records.map(({ plain, t, k }) => plain ?? t ?? k)).toEqual([
      "answered 200",
      "answered 200",
      "loaded",
      "ready",
    ]);
    expect(await (await fetch(served.url)).text()).toBe("1");
  });

  test("builds a request's URL from its Host header, for any path", async () => {
    const { url } = await serve("nodejs", `export default ({ url }) => url;`);
    const { hostname, port } = new URL(url);
    const asked = get({ hostname, port, path: "//other.example/x?y" });
    const [answer] = (await once(asked, "response")) as [IncomingMessage];
    expect(await text(answer)).toBe(`${url}//other.example/x?y`);
  });

  test("accepts a string, an object or bytes as a handler's response", async () => {
    const { url } = await serve(
      "nodejs",
      `export default ({ url }) => ({
        "/text": "grüß", "/object": { a: [1] }, "/list": [1, 2], "/bytes": new Uint8Array([0, 255]),
      })[new URL(url).pathname];`,
    );
    const text = await fetch(`${url}/text`);
    expect(text.headers.get("content-type")).toBe("text/plain;charset=UTF-8");
    expect(await text.text()).toBe("grüß");
    expect(await (await fetch(`${url}/object`)).json()).toEqual({ a: [1] });
    expect(await (await fetch(`${url}/list`)).json()).toEqual([1, 2]);
    expect([...new Uint8Array(await (await fetch(`${url}/bytes`)).arrayBuffer())]).toEqual([0, 255]);
    expect((await fetch(`${url}/text`, { method: "HEAD" })).status).toBe(200);
  });

  test("aborts a request's signal when the caller disconnects", async () => {
    const served = await serve(
      "nodejs",
      `export default (request) => new Promise((resolve) => {
        console.log("asked");
        request.signal.addEventListener("abort", () => { console.log("left"); resolve("nobody's"); });
      });`,
    );
    const leaving = new AbortController();
    const asked = fetch(served.url, { signal: leaving.signal }).catch(() => "left");
    await served.waitForRecord(({ t }) => t === "asked");
    leaving.abort();
    expect(await asked).toBe("left");
    await served.waitForRecord(({ t }) => t === "left");
  });

  test("logs output with level and request id, and splits long lines", async () => {
    const served = await serve(
      "nodejs",
      `export default async (request) => {
        console.debug("d"); console.info("i %d", 1); console.warn({ w: 1 }); console.error("e1\\ne2");
        await new Promise((resolve) => setTimeout(resolve, 5));
        console.log("\\u0001".repeat(5000));
        process.stdout.write("plain\\n");
        return "done";
      };`,
    );
    await Promise.all(["a", "b"].map((name) => fetch(served.url, { headers: { "x-request-id": name } })));
    for (const r of ["a", "b"]) {
      const records = served.records.filter((record) => record["r"] === r);
      expect(records.slice(0, 5)).toEqual([
        { l: "debug", r, t: "d" },
        { l: "info", r, t: "i 1" },
        { l: "warn", r, t: "{ w: 1 }" },
        { l: "error", r, t: "e1" },
        { l: "error", r, t: "e2" },
      ]);
      expect(
        records
          .slice(5)
          .map(({ t }) => t)
          .join(""),
      ).toBe("\u0001".repeat(5000));
      for (const record of records) expect(Buffer.byteLength(JSON.stringify(record))).toBeLessThan(8192);
    }
    expect(served.records).toContainEqual({ plain: "plain" });
  });

  test("reports waitUntil's work until its promise settles or the timeout is over, and logs a failure", async () => {
    const served = await serve(
      "nodejs",
      `export default (request, { waitUntil }) => {
        if (request.url.endsWith("/fails")) waitUntil(Promise.reject(new Error("behind")));
        else if (request.url.endsWith("/ever")) waitUntil(new Promise(() => {}));
        else waitUntil(new Promise((resolve) => setTimeout(resolve, 20)));
        return "answered";
      };`,
      { env: { KONTOR_TIMEOUT_MS: "200" } },
    );
    const waits = () => served.records.filter(({ k }) => k === "wait").map(({ n }) => n);
    for (const path of ["/", "/ever", "/fails"]) {
      served.records.length = 0;
      expect(await (await fetch(served.url + path)).text()).toBe("answered");
      await served.waitForRecord(({ k, n }) => k === "wait" && n === 0);
      expect(waits()).toEqual([1, 0]);
    }
    expect(served.records.some(({ l, t }) => l === "error" && String(t).includes("behind"))).toBe(true);
  });

  test("survives a handler's unhandled rejection", async () => {
    const served = await serve(
      "nodejs",
      `export default () => { void Promise.reject(new Error("stray")); return "fine"; };`,
    );
    expect(await (await fetch(served.url)).text()).toBe("fine");
    await served.waitForRecord(({ t }) => String(t).includes("stray"));
    expect(await (await fetch(served.url)).text()).toBe("fine");
  });
});

describe("handlers in Python", () => {
  test("calls a handler with a plain request object, and accepts text, bytes, JSON, a status and headers", async () => {
    const { url } = await serve(
      "python",
      `def handler(request):
    if request.path == "/bytes": return bytes([0, 255])
    if request.path == "/made": return {"made": True}, 201, {"X-Own": "yes"}
    if request.path == "/none": return None, 204
    if request.path == "/list": return [1, "ü"]
    if request.path == "/text": return "grüß"
    return {"method": request.method, "path": request.path, "query": request.query,
            "own": request.headers["x-own"], "json": request.json(), "id": request.request_id}
`,
    );
    const answer = await fetch(`${url}/a%20b?q=%C3%BC&e=`, {
      method: "POST",
      body: JSON.stringify({ a: 1 }),
      headers: { ...id, "X-Own": "yes" },
    });
    expect(await answer.json()).toEqual({
      method: "POST",
      path: "/a b",
      query: { q: "ü", e: "" },
      own: "yes",
      json: { a: 1 },
      id: "req-1",
    });
    expect([...new Uint8Array(await (await fetch(`${url}/bytes`)).arrayBuffer())]).toEqual([0, 255]);
    const made = await fetch(`${url}/made`);
    expect([made.status, made.headers.get("x-own"), await made.json()]).toEqual([201, "yes", { made: true }]);
    expect((await fetch(`${url}/none`)).status).toBe(204);
    expect(await (await fetch(`${url}/list`)).json()).toEqual([1, "ü"]);
    expect(await (await fetch(`${url}/text`)).text()).toBe("grüß");
    expect((await fetch(`${url}/text`, { method: "HEAD" })).status).toBe(200);
  });

  test("accepts an async handler, and streams the response of an async generator", async () => {
    const { url } = await serve(
      "python",
      `import asyncio
async def handler(request):
    await asyncio.sleep(0.01)
    if request.path == "/late":
        await asyncio.sleep(60)
    async def pieces():
        for n in range(3):
            await asyncio.sleep(0.01)
            yield f"{n}\\n"
    return pieces() if request.path == "/stream" else "one"
`,
      { env: { KONTOR_TIMEOUT_MS: "1000" } },
    );
    expect(await (await fetch(url)).text()).toBe("one");
    expect(await (await fetch(`${url}/stream`)).text()).toBe("0\n1\n2\n");
    expect((await fetch(`${url}/late`)).status).toBe(504);
    expect(await (await fetch(url)).text()).toBe("one");
  });

  test("logs output with level and request id", async () => {
    const served = await serve(
      "python",
      `import logging, sys, asyncio
async def handler(request):
    print("p1\\np2")
    await asyncio.sleep(0.005)
    logging.info("i %d", 1); logging.warning("w"); logging.error("e")
    print("err", file=sys.stderr)
    sys.stdout.write("unended")
    return "done"
`,
    );
    await Promise.all(["a", "b"].map((name) => fetch(served.url, { headers: { "x-request-id": name } })));
    for (const r of ["a", "b"]) {
      const records = served.records.filter((record) => record["r"] === r);
      for (const record of [
        { l: "info", r, t: "p1" },
        { l: "info", r, t: "p2" },
        { l: "info", r, t: "i 1" },
        { l: "warn", r, t: "w" },
        { l: "error", r, t: "e" },
        { l: "error", r, t: "err" },
      ]) {
        expect(records).toContainEqual(record);
      }
    }
  });

  test("ends a handler at its timeout while other clients do not read their responses", async () => {
    const served = await serve(
      "python",
      `import time
large = bytes(16 * 1024**2)
def handler(request):
    while request.path == "/slow": time.sleep(0.01)
    return "fine" if request.path == "/fine" else large
`,
      { env: { KONTOR_TIMEOUT_MS: "500" } },
    );
    const { hostname, port } = new URL(served.url);
    const silent = await Promise.all(
      Array.from({ length: 12 }, async () => {
        const socket = connect(Number(port), hostname).on("error", () => {});
        await once(socket, "connect");
        socket.write("GET / HTTP/1.1\r\n\r\n");
        return socket;
      }),
    );
    expect((await fetch(`${served.url}/slow`)).status).toBe(504);
    const timedOut = () => served.records.filter(({ t }) => String(t).startsWith("Timed out")).length;
    await served.waitForRecord(() => timedOut() === 13);
    expect(await (await fetch(`${served.url}/fine`)).text()).toBe("fine");
    for (const socket of silent) socket.destroy();
  });

  test("ends only the request that exceeds its timeout, even just before its response", async () => {
    const served = await serve(
      "python",
      `import asyncio, time
until = time.monotonic
async def later(end):
    while until() < end: await asyncio.sleep(0)
def handler(request):
    end = until() + float(request.query["s"])
    if request.path == "/async": return ended(end)
    while until() < end: pass
    return "in time"
async def ended(end):
    await later(end)
    return "in time"
`,
      { env: { KONTOR_TIMEOUT_MS: "100" } },
    );
    const ask = async (path: string) => (await fetch(served.url + path)).status;
    // At the timeout, requests in flight are aborted.
    const askClosely = (path: string) => ask(path).catch(() => 504);
    for (let round = 0; round < 25; round += 1) {
      const near = Array.from({ length: 4 }, (_, n) => 0.097 + 0.001 * n + 0.0002 * (round % 5));
      const paths = near.map((s, n) => `/${n % 2 === 0 ? "async" : "plain"}?s=${s}`);
      for (const status of await Promise.all(paths.map(askClosely))) expect([200, 504]).toContain(status);
      expect(await ask("/plain?s=0")).toBe(200);
    }
    expect(served.records.filter(({ t }) => /TimedOut|thread|Too many/.test(String(t)))).toEqual([]);
  });

  test("serves requests again after a handler blocked the event loop", async () => {
    const served = await serve(
      "python",
      `import time
async def handler(request):
    if request.path == "/blocks": time.sleep(1)
    return "free"
`,
      { env: { KONTOR_TIMEOUT_MS: "300" } },
    );
    const asked = ["/blocks", ...Array.from({ length: 11 }, () => "/")];
    const answers = await Promise.all(asked.map((path) => fetch(served.url + path)));
    expect(answers[0]!.status).toBe(504);
    await expect.poll(async () => (await fetch(served.url)).status, { timeout: 10_000 }).toBe(200);
    expect(served.records.filter(({ t }) => String(t).includes("Too many"))).toEqual([]);
  });

  test.each([
    [
      "run on after their time",
      `import time
def handler(request):
    while True:
        try: time.sleep(0.01)
        except BaseException: pass
`,
    ],
    [
      "wait for a loop that one of them blocks",
      `import time
async def handler(request):
    time.sleep(600)
`,
    ],
    [
      "are async and do not end when they are cancelled",
      `import asyncio
async def handler(request):
    while True:
        try: await asyncio.sleep(600)
        except BaseException: pass
`,
    ],
  ])("ends the process when ten requests %s", async (_, code) => {
    const served = await serve("python", code, { env: { KONTOR_TIMEOUT_MS: "300" } });
    const answers = await Promise.all(Array.from({ length: 10 }, () => fetch(served.url)));
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 504));
    expect(await served.ended).toBe(1);
    expect(served.records.at(-1)).toMatchObject({ t: expect.stringContaining("Too many requests run on") });
  });

  test("serves ten requests concurrently", async () => {
    const { url } = await serve(
      "python",
      `import threading
all_here = threading.Barrier(10)
def handler(request):
    all_here.wait()
    return "together"
`,
    );
    const answers = await Promise.all(Array.from({ length: 10 }, async () => (await fetch(url)).text()));
    expect(answers).toEqual(Array.from({ length: 10 }, () => "together"));
  });
});

test.each([
  ["process.env", true],
  ["new (class Order { total = 3; })()", true],
  ["new Map()", false],
  ["new Error('no')", false],
])("converts %s to a JSON response: %s", async (value, isJson) => {
  const { url } = await serve("nodejs", `export default () => ${value};`);
  const answer = await fetch(url, { headers: id });
  expect([answer.status, answer.headers.get("content-type")?.startsWith("application/json")]).toEqual([
    isJson ? 200 : 500,
    true,
  ]);
});
