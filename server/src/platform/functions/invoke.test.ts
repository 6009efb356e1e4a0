import { describe, expect, test } from "vitest";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { testDatabase } from "../../../test/harness.ts";
import { goLive, instancesHost, makeVersion } from "../instances/testing/instances-host.ts";
import { personOn } from "../testing/platform-app.ts";
import { createFunction } from "./create.ts";
import { buildRequest, invokeFunction } from "./invoke.ts";
import { followLogs, functionMetrics, readLogs } from "./monitoring.ts";
import { FunctionCreate, InvokeRequest } from "./schema.ts";

const { db } = await testDatabase();
const host = await instancesHost(db);
const app = host.app as App;
let named = 0;
const { signal } = new AbortController();

interface TestFunction {
  actor: Actor;
  id: string;
}

async function make(more: object = {}): Promise<TestFunction> {
  const actor = await personOn(db, "pro");
  const body = { name: `invoked-${++named}`, runtime: "nodejs", handler_code: "x", ...more };
  const { id } = await createFunction(app, host.instances, actor, FunctionCreate.parse(body));
  return { actor, id };
}

async function deployHandler(code: string, more: object = {}): Promise<TestFunction> {
  const made = await make(more);
  const version = await makeVersion(db, host, { id: made.id, name: "", workspaceId: "" }, 1, code);
  await host.instances.prove(version, signal);
  await goLive(db, version);
  await host.instances.switched(made.id);
  return made;
}

const invoke = ({ actor, id }: TestFunction, input: object = {}) =>
  invokeFunction(app, host.instances, actor, { id, input: InvokeRequest.parse(input), signal });

describe("function invocation", () => {
  test("passes method, path, query, headers and body to the handler, and returns the whole response", async () => {
    const made = await deployHandler(
      `export default async (request) => {
        const { method, url, headers } = request;
        const { pathname, search, host } = new URL(url);
        return Response.json(
          { method, pathname, search, host, body: await request.text(), headers: Object.fromEntries(headers) },
          { status: 418, headers: { "x-said": "yes" } },
        );
      };`,
    );
    const answer = await invoke(made, {
      method: "PUT",
      path: "/a/b?c=1",
      query: { d: "e f", g: [1, true] },
      headers: { "X-Own": "z", "Content-Type": "application/x-own" },
      body: { hello: "world" },
    });
    expect(answer).toMatchObject({ status: 418, body_base64: null, duration_ms: expect.any(Number) });
    expect(answer.headers).toMatchObject({ "x-said": "yes", "content-type": "application/json" });
    const seen = JSON.parse(answer.body!) as Record<string, unknown>;
    expect(seen).toMatchObject({
      method: "PUT",
      pathname: "/a/b",
      search: "?c=1&d=e+f&g=1&g=true",
      body: '{"hello":"world"}',
      headers: { "x-own": "z", "content-type": "application/x-own" },
    });
    expect(seen["host"]).toBe(`invoked-${named}.fn.apps.localhost`);
  });

  test("invokes a function without its key, and passes no key to the handler", async () => {
    const made = await deployHandler(
      `export default (request) => Response.json(Object.fromEntries(request.headers))`,
      { auth_mode: "api_key" },
    );
    const { status, body } = await invoke(made, { headers: { "X-Api-Key": "surely-mine" } });
    expect(status).toBe(200);
    expect(body).not.toContain("surely-mine");
    expect(body).not.toContain("fnk_");
  });

  test("encodes binary bodies of requests and responses in base64", async () => {
    const made = await deployHandler(
      `export default async (request) => new Response(await request.arrayBuffer())`,
    );
    const bytes = Buffer.from([0, 255, 1, 254]).toString("base64");
    expect(await invoke(made, { body_base64: bytes })).toMatchObject({ body: null, body_base64: bytes });
    expect(await invoke(made, { body: "grüße" })).toMatchObject({ body: "grüße", body_base64: null });
    expect(await invoke(made)).toMatchObject({ body: "", body_base64: null });
  });

  test("returns a handler's failure as its response, without a stack trace", async () => {
    const made = await deployHandler(`export default () => { throw new Error("at my desk") }`);
    const { status, body } = await invoke(made);
    expect(status).toBe(500);
    expect(JSON.parse(body!)).toMatchObject({ error: { code: "function_error" } });
    expect(body).not.toContain("handler.mjs");
  });

  test("refuses to invoke a function without a deploy, and returns 404 for one of another workspace", async () => {
    const made = await make();
    await expect(invoke(made)).rejects.toMatchObject({ code: "function_not_deployed", status: 409 });
    const eve = await personOn(db, "pro");
    await expect(invoke({ ...made, actor: eve })).rejects.toMatchObject({ code: "function_not_found" });
  });

  test("drops headers of the connection, and headers that only the server sets", () => {
    const given = {
      Connection: "close",
      "Transfer-Encoding": "chunked",
      "Content-Length": "5",
      Host: "evil",
      "X-Forwarded-For": "1.2.3.4",
      "X-Request-Id": "mine",
      "X-Kontor-Visit": "x",
      "X-Api-Key": "x",
      Authorization: "Bearer mine",
    };
    const { headers } = buildRequest(InvokeRequest.parse({ headers: given }), "here.test");
    expect(headers).toEqual({
      authorization: "Bearer mine",
      host: "here.test",
      "x-forwarded-host": "here.test",
      "x-forwarded-proto": "https",
    });
  });

  test("accepts a body of 6 MiB and refuses a larger one", () => {
    const of = (length: number) => buildRequest(InvokeRequest.parse({ body: "x".repeat(length) }), "x");
    expect(of(6 * 1024 ** 2).body).toHaveLength(6 * 1024 ** 2);
    expect(() => of(6 * 1024 ** 2 + 1)).toThrow(expect.objectContaining({ status: 413 }));
  });

  test.each([
    { path: "a" },
    { path: "/a b" },
    { path: "/a\r\nX: y" },
    { path: "/a#b" },
    { method: "CONNECT" },
    { method: "get" },
    { headers: { "a b": "c" } },
    { headers: { a: "b\r\nc: d" } },
    { headers: { a: "b\0" } },
    { query: { a: {} } },
    { body: "a", body_base64: "YQ==" },
    { body_base64: "!" },
    { surely: 1 },
  ])("refuses a body with %j", (input) => {
    expect(InvokeRequest.safeParse(input).success).toBe(false);
  });
});

describe("function logs", () => {
  test("streams log lines with level and request id", async () => {
    const made = await deployHandler(`export default () => { console.warn("careful"); return "ok" }`);
    await invoke(made);
    const read = () => readLogs(app, host.instances, made.actor, made.id, 200);
    const findCareful = async () => (await read()).lines.find(({ text }) => text === "careful");
    await expect.poll(findCareful, { timeout: 10_000 }).toBeDefined();
    expect(await findCareful()).toMatchObject({
      level: "warn",
      stream: "stderr",
      request_id: expect.stringMatching(/^[\w-]+$/),
      at: expect.stringMatching(/Z$/),
    });
    const reader = new AbortController();
    const which = { id: made.id, count: 1, after: null };
    const follow = await followLogs(app, host.instances, made.actor, which);
    await invoke(made);
    let heard = 0;
    for await (const { data } of follow(reader.signal)) {
      if (data.text === "careful") heard += 1;
      if (heard > 0) reader.abort();
    }
    expect(heard).toBeGreaterThan(0);
    const eve = await personOn(db, "pro");
    await expect(readLogs(app, host.instances, eve, made.id, 1)).rejects.toMatchObject({ status: 404 });
  });

  test("returns no log lines for a function without output", async () => {
    const made = await make();
    expect(await readLogs(app, host.instances, made.actor, made.id, 5)).toEqual({
      lines: [],
      truncated: false,
    });
  });
});

describe("function metrics", () => {
  test("counts responses and errors", async () => {
    const made = await deployHandler(
      `export default (request) => new Response("", { status: new URL(request.url).pathname === "/bad" ? 500 : 200 })`,
    );
    for (const path of ["/", "/", "/", "/bad"]) await invoke(made, { path });
    const read = () => functionMetrics(app, made.actor, made.id, "5m");
    await expect.poll(async () => (await read()).requests, { timeout: 10_000 }).toBe(4);
    const metrics = await read();
    expect(metrics).toMatchObject({ period: "5m", requests: 4, error_rate: 0.25 });
    expect(metrics.series).toHaveLength(5);
    expect(metrics.p50_ms).toBeGreaterThan(0);
  });

  test("returns null metrics for a function without requests", async () => {
    const made = await make();
    expect(await functionMetrics(app, made.actor, made.id, "1h")).toMatchObject({
      requests: 0,
      error_rate: null,
      p50_ms: null,
      cold_starts: 0,
      p50_wake_ms: null,
    });
  });
});
