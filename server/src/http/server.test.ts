/** Tests the HTTP layer alone: three test routes, a real database, no accounts. */
import { request as httpRequest } from "node:http";
import { connect } from "node:net";
import { Readable } from "node:stream";
import { sql } from "kysely";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { Actor } from "#accounts/actor.ts";
import { defineError } from "#lib/errors.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../test/harness.ts";
import { answer, defineRoute, streamed, type Api, type Route } from "./define-route.ts";
import { createHttpServer, type HttpServer } from "./server.ts";
import { openEventStream } from "./streams/sse.ts";

// oxlint-disable-next-line typescript/no-explicit-any -- an answer's shape is what these tests are about
type Json = any;

const teapot = defineError("teapot", 418, () => ({ detail: "I am one.", meta: { spout: true } }));
const secretInDetail = "hunter2-canary";

const actor: Actor = {
  kind: "api_token",
  id: "tok_test",
  label: "test",
  role: "owner",
  userId: "11111111-1111-4111-8111-111111111111",
  scopes: null,
  tokenId: "tok_test",
  workspaces: [
    {
      id: "22222222-2222-4222-8222-222222222222",
      kind: "personal",
      role: "owner",
      plan: "starter",
      sandboxTier: "free",
      suspended: false,
    },
  ],
  ip: null,
};

let made = 0;
let cameToNothing = -1;
let heard = false;
let release: () => void = () => {};

function routesOf(api: Api, prefix: string): Route[] {
  const common = { api, tag: "things", summary: "", scope: null } as const;
  return [
    defineRoute({
      ...common,
      method: "POST",
      path: `${prefix}/things`,
      operationId: `${api}CreateThing`,
      body: z.object({
        name: z.string().min(2).max(5),
        count: z.int().min(1).default(1),
        kind: z.enum(["a", "b"]).optional(),
        nested: z.object({ inner: z.boolean() }).optional(),
        tags: z.record(z.string(), z.string()).optional(),
      }),
      responses: {
        201: z.object({ id: z.int(), name: z.string(), secret: z.string().nullable() }),
        200: z.object({ id: z.int() }),
      },
      idempotent: true,
      secretFields: ["secret"],
      handler: ({ body }) => ({
        id: ++made,
        name: body.name,
        secret: secretInDetail,
        password_hash: "must not leave",
      }),
    }),
    defineRoute({
      ...common,
      method: "GET",
      path: `${prefix}/things/{id}`,
      operationId: `${api}GetThing`,
      params: z.object({ id: z.string() }),
      query: z.object({
        limit: z.int().min(1).max(100).default(20),
        deep: z.boolean().default(false),
        tag: z.array(z.string()).optional(),
        metadata: z.record(z.string(), z.string()).optional(),
      }),
      responses: { 200: z.looseObject({}) },
      handler: ({ params, query }) => ({ ...params, ...query }),
    }),
    defineRoute({
      ...common,
      method: "PATCH",
      path: `${prefix}/things/{id}`,
      operationId: `${api}UpdateThing`,
      body: z.object({ name: z.string().optional() }),
      readOnlyFields: ["id", "created_at"],
      responses: { 200: z.looseObject({}) },
      handler: ({ body }) => body,
    }),
    defineRoute({
      ...common,
      method: "DELETE",
      path: `${prefix}/things/{id}`,
      operationId: `${api}DeleteThing`,
      responses: { 204: null },
      handler: () => undefined,
    }),
    defineRoute({
      ...common,
      method: "POST",
      path: `${prefix}/fail/{how}`,
      operationId: `${api}Fail`,
      responses: { 200: z.object({}), 202: z.object({ id: z.int() }) },
      idempotent: true,
      replay: {
        activity: "thing.made",
        render: ({ made: things }) =>
          things[0]["id"] === cameToNothing ? undefined : answer(202, { id: Number(things.at(-1)?.["id"]) }),
      },
      handler: async ({ actor, params, note }) => {
        made++;
        const how = (params as { how: string }).how;
        if (how.startsWith("noted")) await database.db.transaction().execute((tx) => note(tx, { id: made }));
        if (how.startsWith("deed"))
          await database.db.transaction().execute(async (tx) => {
            const deed = (action: string, id: number) =>
              recordActivity(tx, actor, action, { kind: "thing", id: String(id), label: null }, null);
            await deed("shelf.made", -1);
            await deed("thing.made", made);
            if (how.startsWith("deeds")) await deed("thing.made", ++made);
            if (how === "deed-undone") throw new Error("before the commit");
          });
        if (how.endsWith("-crash")) throw new Error("after the commit");
        if (how === "noted-wait") await new Promise<void>((resolve) => (release = resolve));
        if (how === "teapot") throw teapot();
        if (how === "crash") throw new Error(`the pipe ${secretInDetail} burst`);
        if (how === "wait") await new Promise<void>((resolve) => (release = resolve));
        return answer(202, { id: made }, { "x-extra": "yes" });
      },
    }),
    defineRoute({
      ...common,
      method: "GET",
      path: `${prefix}/stream`,
      operationId: `${api}Stream`,
      responses: { 200: { contentType: "text/event-stream", description: "numbers" } },
      handler: async ({ request, reply }) => {
        const stream = openEventStream(request, reply, { retryMs: 2000 });
        for (const n of [1, 2]) await stream.send({ id: n, event: "number", data: { n, text: "a\nb" } });
        stream.close();
        return streamed;
      },
    }),
    defineRoute({
      ...common,
      method: "GET",
      path: `${prefix}/endless`,
      operationId: `${api}Endless`,
      responses: { 200: { contentType: "text/event-stream", description: "the same again" } },
      handler: async ({ request, reply }) => {
        const stream = openEventStream(request, reply);
        while (!stream.signal.aborted) {
          await stream.send({ data: "x".repeat(10_000) });
          await new Promise((resolve) => setImmediate(resolve));
        }
        heard = true;
        return streamed;
      },
    }),
    defineRoute({
      ...common,
      scope: "public",
      method: "POST",
      path: `${prefix}/public`,
      operationId: `${api}Public`,
      body: z.object({ email: z.string().max(254), password: z.string().max(1024) }),
      responses: { 200: z.object({}) },
      handler: () => ({}),
    }),
    defineRoute({
      ...common,
      method: "PUT",
      path: `${prefix}/list`,
      operationId: `${api}List`,
      body: z.object({
        items: z.array(z.union([z.string().max(20), z.object({ path: z.string().max(20) })])).max(100),
      }),
      responses: { 200: z.object({}) },
      handler: () => ({}),
    }),
    defineRoute({
      ...common,
      method: "PUT",
      path: `${prefix}/upload`,
      operationId: `${api}Upload`,
      bodyType: "stream",
      bodyLimit: 1000,
      responses: { 200: z.object({ bytes: z.int() }) },
      handler: async ({ request }) => {
        let bytes = 0;
        for await (const chunk of request.raw as Readable) bytes += (chunk as Buffer).length;
        return { bytes };
      },
    }),
    defineRoute({
      ...common,
      scope: "sandboxes:write",
      method: "GET",
      path: `${prefix}/scoped`,
      operationId: `${api}Scoped`,
      responses: { 200: z.object({}) },
      handler: () => ({}),
    }),
  ];
}

const database = await testDatabase();
const clock = testClock();
const logged: string[] = [];
let server: HttpServer;
let scopes: Actor["scopes"] = null;

beforeAll(async () => {
  const log = Object.assign(Object.create(silentLog) as typeof silentLog, {
    error: (...line: unknown[]) => logged.push(JSON.stringify(line)),
  });
  server = await createHttpServer(
    { config: testConfig(), db: database.db, clock, log },
    {
      platform: routesOf("platform", "/api/v1"),
      sandbox: routesOf("sandbox", "/v1"),
      agent: routesOf("agent", "/v1/agents"),
    },
    { findActor: async ({ secret }) => (secret === "good" ? { ...actor, scopes } : undefined) },
  );
});
afterAll(() => server.close());

let port: Promise<number> | undefined;
const listening = () => (port ??= server.listen({ host: "127.0.0.1", port: 0 }));

type Options = {
  headers?: Record<string, string>;
  body?: unknown;
  raw?: string | Buffer;
  token?: string | null;
};

async function call(method: string, url: string, { headers = {}, body, raw, token = "good" }: Options = {}) {
  clock.advance(1000);
  const response = await server.fastify.inject({
    method: method as "GET",
    url,
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...headers,
    },
    ...(raw !== undefined ? { payload: raw } : body !== undefined ? { payload: JSON.stringify(body) } : {}),
  });
  const text = response.payload;
  const json = text.startsWith("{") || text.startsWith("[") ? (JSON.parse(text) as Record<string, Json>) : {};
  return { status: response.statusCode, headers: response.headers, text, json };
}

test("sends a request id on every response, and keeps a caller's own id if it is a plain word", async () => {
  const own = await call("GET", "/v1/things/x", { headers: { "x-request-id": "my.id-1" } });
  expect(own.headers["x-request-id"]).toBe("my.id-1");
  const replaced = await call("GET", "/v1/things/x", { headers: { "x-request-id": "bad id" } });
  expect(replaced.headers["x-request-id"]).toMatch(/^[0-9a-f-]{36}$/);
  expect((await call("GET", "/nowhere")).headers["x-request-id"]).toBeTruthy();
});

test("returns 401 with a challenge for a missing, unknown or malformed token, whatever the body", async () => {
  for (const headers of [
    {},
    { authorization: "Bearer bad" },
    { authorization: "Basic Zm9v" },
    { authorization: "Bearer" },
  ]) {
    const refused = await call("POST", "/v1/things", {
      token: null,
      headers: headers as Record<string, string>,
      raw: "{",
    });
    expect(refused.status).toBe(401);
    expect(refused.json.code).toBe("unauthenticated");
    expect(refused.headers["www-authenticate"]).toMatch(/^Bearer/);
  }
});

test("lists all faults of a platform input at once, in FastAPI's format", async () => {
  const { status, json } = await call("POST", "/api/v1/things", {
    body: { name: "x", count: 0, kind: "c", nested: { inner: "yes", innner: true }, nmae: 1 },
  });
  expect(status).toBe(422);
  expect(json.code).toBe("validation_error");
  expect(json.detail).toEqual(
    expect.arrayContaining([
      { loc: ["body", "name"], msg: "String should have at least 2 characters", type: "string_too_short" },
      {
        loc: ["body", "count"],
        msg: "Input should be greater than or equal to 1",
        type: "greater_than_equal",
      },
      { loc: ["body", "kind"], msg: "Input should be 'a' or 'b'", type: "enum" },
      { loc: ["body", "nested", "inner"], msg: "Input should be a valid boolean", type: "bool_type" },
      {
        loc: ["body", "nested", "innner"],
        msg: "Extra inputs are not permitted; did you mean 'inner'?",
        type: "extra_forbidden",
      },
      {
        loc: ["body", "nmae"],
        msg: "Extra inputs are not permitted; did you mean 'name'?",
        type: "extra_forbidden",
      },
    ]),
  );
  expect(json.detail).toHaveLength(6);
  const missing = await call("POST", "/api/v1/things", { body: {} });
  expect(missing.json.detail).toEqual([{ loc: ["body", "name"], msg: "Field required", type: "missing" }]);
  const none = await call("POST", "/api/v1/things");
  expect(none.json.detail).toEqual([{ loc: ["body"], msg: "Field required", type: "missing" }]);
});

test("names the field in one sentence with 400 on the sandbox API", async () => {
  const { status, json } = await call("POST", "/v1/things", { body: { name: "toolong", tags: { a: 1 } } });
  expect(status).toBe(400);
  expect(json.code).toBe("invalid_request");
  expect(json.detail).toBe("name: must have at most 5 characters");
  expect(json.errors).toEqual([
    { field: "name", message: "must have at most 5 characters" },
    { field: "tags.a", message: "must be a string" },
  ]);
});

test("adds a JSON pointer on the agent API", async () => {
  const { status, json } = await call("POST", "/v1/agents/things", {
    body: { name: "ab", nested: { inner: 1 } },
  });
  expect(status).toBe(400);
  expect(json.pointer).toBe("/nested/inner");
});

test("refuses a body that is not JSON without quoting it", async () => {
  for (const [raw, position] of [
    [`{"name": "${secretInDetail}`, true],
    [Buffer.from([0x7b, 0xff]), false],
  ] as const) {
    const headers = { "content-type": "application/json" };
    const platform = await call("POST", "/api/v1/things", { raw, headers });
    expect(platform.status).toBe(422);
    expect(platform.json.detail[0].type).toBe("json_invalid");
    expect(platform.json.detail[0].loc).toHaveLength(position ? 2 : 1);
    const sandbox = await call("POST", "/v1/things", { raw, headers });
    expect(sandbox.status).toBe(400);
    expect(sandbox.json.detail).toMatch(/^body: is not valid (JSON, at character \d+|UTF-8)$/);
    expect(platform.text + sandbox.text).not.toContain(secretInDetail);
  }
});

const manyKeys = (count: number) =>
  Object.fromEntries(Array.from({ length: count }, (_, n) => [`nmae${n}`, n]));

test("reports at most 20 problems, and cuts the names in them", async () => {
  const wide = await call("POST", "/api/v1/things", { body: { name: "abc", ...manyKeys(9000) } });
  expect([wide.status, wide.json.detail.length]).toEqual([422, 20]);
  const long = "x".repeat(500_000);
  for (const path of ["/api/v1/things", "/v1/things", "/v1/agents/things"]) {
    const { status, text } = await call("POST", path, { body: { name: "abc", [long]: 1 } });
    expect(status).toBe(path.startsWith("/api") ? 422 : 400);
    expect(text).toContain(`${"x".repeat(64)}…`);
    expect(text.length).toBeLessThan(1000);
  }
  const query = await call("GET", `/v1/things/x?${Object.keys(manyKeys(1000)).join("&")}`);
  expect([query.status, query.json.errors.length]).toEqual([400, 20]);
});

test("refuses a list or a text far above its limit without parsing its parts", async () => {
  const items = Array.from({ length: 200_000 }, () => ({ wrong: 1 }));
  const { status, json } = await call("PUT", "/v1/list", { body: { items } });
  expect([status, json.detail]).toEqual([
    413,
    "The body is larger than the 1048576 bytes that this operation accepts; send a smaller body.",
  ]);
  const list = await call("PUT", "/v1/list", { body: { items: items.slice(0, 50_000) } });
  expect([list.status, list.json.errors]).toEqual([
    400,
    [{ field: "items", message: "must have at most 100 items" }],
  ]);
  const parts = await call("PUT", "/v1/list", { body: { items: items.slice(0, 100) } });
  expect([parts.status, parts.json.errors.length]).toEqual([400, 20]);
  const text = await call("PUT", "/v1/list", { body: { items: ["a", { path: "x".repeat(5000) }] } });
  expect([text.status, text.json.errors]).toEqual([
    400,
    [{ field: "items[1].path", message: "must have at most 20 characters" }],
  ]);
});

test("refuses JSON that is too deep or has too many keys, and names the cure", async () => {
  const headers = { "content-type": "application/json" };
  const deep = `{"name":"abc","tags":${"[".repeat(5000)}${"]".repeat(5000)}}`;
  const platform = await call("POST", "/api/v1/things", { headers, raw: deep });
  expect([platform.status, platform.json.detail[0].type]).toEqual([422, "json_invalid"]);
  const sandbox = await call("POST", "/v1/things", { headers, raw: deep });
  expect([sandbox.status, sandbox.json.detail]).toEqual([
    400,
    "body: is nested deeper than 64 levels; send flatter JSON, or the inner part as a string",
  ]);
  const wide = await call("POST", "/v1/things", { body: manyKeys(10_001) });
  expect(wide.json.detail).toBe(
    "body: has an object with more than 10000 keys; send a list, or several requests",
  );
});

test("refuses a body above 16 KiB without a credential", async () => {
  const fits = { email: "a", password: "b".repeat(1024), ...manyKeys(900) };
  expect((await call("POST", "/api/v1/public", { token: null, body: fits })).status).toBe(422);
  const { status, json } = await call("POST", "/api/v1/public", { token: null, body: manyKeys(2000) });
  expect([status, json]).toMatchObject([413, { code: "payload_too_large", limit_bytes: 16_384 }]);
});

test("counts requests without a credential by address, on routes and on sites", async () => {
  const getMetrics: string[] = [];
  const limited = await createHttpServer(
    { config: testConfig({ rateLimitAddress: "2" }), db: database.db, clock, log: silentLog },
    { platform: routesOf("platform", "/api/v1"), sandbox: [], agent: [] },
    {
      findActor: async () => actor,
      raw: [
        {
          prefix: "/site/",
          handle: async (_, response) => {
            getMetrics.push("site");
            response.end();
          },
        },
      ],
    },
  );
  const at = await limited.listen({ host: "127.0.0.1", port: 0 });
  const ask = async (path: string, init: RequestInit = {}) => {
    const { status, headers } = await fetch(`http://127.0.0.1:${at}${path}`, init);
    return [status, headers.get("retry-after")];
  };
  const json = { "content-type": "application/json" };
  const post = { method: "POST", headers: json, body: '{"email":"a","password":"b"}' };
  try {
    expect(await ask("/api/v1/public", post)).toEqual([200, null]);
    expect(await ask("/site/a")).toEqual([200, null]);
    expect(await ask("/site/a")).toEqual([429, "60"]);
    expect(await ask("/api/v1/public", post)).toEqual([429, "60"]);
    expect(await ask("/site/a", { headers: { authorization: "Bearer x" } })).toEqual([200, null]);
    expect(getMetrics).toHaveLength(2);
  } finally {
    await limited.close();
  }
});

test("counts unknown credentials by address, and accepts a valid one from a limited address", async () => {
  const limited = await createHttpServer(
    { config: testConfig({ rateLimitUnknownCredentials: "2" }), db: database.db, clock, log: silentLog },
    { platform: routesOf("platform", "/api/v1"), sandbox: [], agent: [] },
    { findActor: async ({ secret }) => (secret === "good" ? actor : undefined) },
  );
  const get = async (headers: Record<string, string>, remoteAddress = "192.0.2.1") => {
    const answer = await limited.fastify.inject({ url: "/api/v1/things/x", headers, remoteAddress });
    return [answer.statusCode, answer.headers["retry-after"]];
  };
  const bearer = (secret: string) => ({ authorization: `Bearer ${secret}` });
  try {
    for (const headers of [bearer("bad"), { cookie: "kontor_session=bad" }])
      expect(await get(headers)).toEqual([401, undefined]);
    expect(await get(bearer("bad"))).toEqual([429, "60"]);
    expect(await get({ cookie: "kontor_session=bad" })).toEqual([429, "60"]);
    expect(await get(bearer("good"))).toEqual([200, undefined]);
    // A request without a credential gets 401 as before. Other addresses are not limited.
    expect(await get({})).toEqual([401, undefined]);
    expect(await get(bearer("bad"), "192.0.2.2")).toEqual([401, undefined]);
  } finally {
    await limited.close();
  }
});

test("refuses text that a database cannot store: unpaired surrogates, __proto__, NUL in a path", async () => {
  const headers = { "content-type": "application/json" };
  expect((await call("POST", "/v1/things", { headers, raw: '{"name":"\\ud800"}' })).status).toBe(400);
  expect(
    (await call("POST", "/v1/things", { headers, raw: '{"name":"ab","tags":{"__proto__":"x"}}' })).status,
  ).toBe(400);
  expect((await call("GET", "/v1/things/a%00b")).status).toBe(400);
  expect((await call("POST", "/v1/things", { headers, raw: '{"name":"\\ud83d\\ude00a"}' })).status).toBe(201);
});

test("returns 415 for a wrong media type and 413 for a large body, and treats an empty body as none", async () => {
  const form = { "content-type": "application/x-www-form-urlencoded" };
  expect((await call("POST", "/v1/things", { headers: form, raw: "name=ab" })).status).toBe(415);
  expect((await call("POST", "/v1/fail/x", { headers: form, raw: "" })).status).toBe(202);
  const large = await call("POST", "/v1/things", { body: { name: "x".repeat(1024 * 1024) } });
  expect(large.status).toBe(413);
  expect(large.json).toMatchObject({ code: "payload_too_large", limit_bytes: 1024 * 1024 });
});

test("refuses JSON in a charset other than UTF-8", async () => {
  const postWithCharset = (charset: string) =>
    call("POST", "/v1/things", {
      headers: { "content-type": `application/json; charset=${charset}` },
      raw: '{"name":"abc"}',
    });
  for (const charset of ["utf-8", "UTF8", '"utf-8"', "us-ascii"])
    expect((await postWithCharset(charset)).status).toBe(201);
  for (const charset of ["utf-16", "iso-8859-1", ""])
    expect((await postWithCharset(charset)).json.code).toBe("unsupported_media_type");
});

test("serves an address with a trailing slash, and suggests the nearest for an unknown one", async () => {
  expect((await call("GET", "/v1/things/x/")).json).toEqual((await call("GET", "/v1/things/x")).json);
  expect((await call("GET", "/v1/thing/x")).json).toMatchObject({
    code: "not_found",
    message: "This address does not exist; did you mean /v1/things/x?",
  });
});

test("returns 404 for an unknown path and 405 for a wrong method, in the shape of the path's API", async () => {
  for (const path of ["/api/v1/nothing", "/v1/nothing", "/v1/agents/nothing/at/all", "/"]) {
    const { status, json } = await call("GET", path);
    expect(status).toBe(404);
    expect(json).toMatchObject({ code: "not_found" });
  }
  const wrong = await call("PUT", "/v1/things/x");
  expect(wrong.status).toBe(405);
  expect(wrong.headers.allow).toBe("DELETE, GET, PATCH");
});

test("converts query values to their schema's types: numbers, booleans, lists, keys in brackets", async () => {
  const { json } = await call(
    "GET",
    "/v1/things/x?limit=7&deep=true&tag=a&tag=b&metadata[team]=red&metadata[k]=v",
  );
  expect(json).toEqual({ id: "x", limit: 7, deep: true, tag: ["a", "b"], metadata: { team: "red", k: "v" } });
  for (const key of ["we[i]rd &k", "a][b", "[", "]", "", "=", "%20", "line\nbreak", "é"]) {
    const odd = await call("GET", `/v1/things/x?${encodeURIComponent(`metadata[${key}]`)}=%3D%26%5D`);
    expect(Object.entries(odd.json.metadata)).toEqual([[key, "=&]"]]);
  }
  const bad = await call("GET", "/api/v1/things/x?limit=abc&deep=maybe&limt=3&metadata=x");
  expect(bad.json.detail.map(({ loc, type }: Json) => [loc[1], type])).toEqual([
    ["limt", "extra_forbidden"],
    ["limit", "int_parsing"],
    ["deep", "bool_parsing"],
    ["metadata", "dict_type"],
  ]);
  expect((await call("GET", "/v1/things/x?limit=1&limit=2")).json.detail).toBe(
    "limit: was given more than once; give it once",
  );
  expect((await call("GET", "/v1/things/x?limit=1.5")).status).toBe(400);
  expect((await call("GET", "/v1/things/x?__proto__[a]=1")).status).toBe(400);
  expect((await call("GET", "/v1/things/x?metadata=x&metadata[k]=v")).status).toBe(400);
});

test("accepts and ignores read-only fields in a PATCH of a GET response", async () => {
  const { status, json } = await call("PATCH", "/v1/things/x", {
    body: { id: "x", created_at: "y", name: "new" },
  });
  expect([status, json]).toEqual([200, { name: "new" }]);
  expect((await call("PATCH", "/v1/things/x", { body: { updated: 1 } })).status).toBe(400);
});

test("sends only declared fields", async () => {
  const { status, json } = await call("POST", "/v1/things", { body: { name: "ab" } });
  expect(status).toBe(201);
  expect(Object.keys(json)).toEqual(["id", "name", "secret"]);
});

test("sends no body with 204, and keeps the headers of a response with another declared status", async () => {
  const gone = await call("DELETE", "/v1/things/x");
  expect([gone.status, gone.text]).toEqual([204, ""]);
  const other = await call("POST", "/v1/fail/x");
  expect([other.status, other.headers["x-extra"]]).toEqual([202, "yes"]);
});

test("sends code and fields of an error, but only the request id of a fault, and logs its cause", async () => {
  const refusal = await call("POST", "/v1/fail/teapot");
  expect([refusal.status, refusal.json]).toEqual([
    418,
    { detail: "I am one.", message: "I am one.", code: "teapot", spout: true },
  ]);
  const fault = await call("POST", "/v1/fail/crash", { headers: { "x-request-id": "fault-1" } });
  expect(fault.status).toBe(500);
  expect(fault.json).toMatchObject({ code: "internal_error", request_id: "fault-1" });
  expect(fault.text).not.toContain("pipe");
  expect(logged.some((line) => line.includes("fault-1"))).toBe(true);
});

test("returns 403 for a missing scope, and accepts a write scope for reads", async () => {
  scopes = ["sandboxes:read"];
  expect((await call("GET", "/v1/scoped")).json).toMatchObject({
    code: "missing_scope",
    scope: "sandboxes:write",
  });
  scopes = ["sandboxes:write"];
  expect((await call("GET", "/v1/scoped")).status).toBe(200);
  scopes = null;
});

test("repeats the first response for the same key, token and body, without its secret", async () => {
  const headers = { "idempotency-key": "key-1" };
  const first = await call("POST", "/v1/things", { headers, body: { name: "ab", count: 2 } });
  const again = await call("POST", "/v1/things", { headers, body: { count: 2, name: "ab" } });
  expect(again.status).toBe(201);
  expect(again.headers["idempotent-replayed"]).toBe("true");
  expect(again.json).toEqual({ ...first.json, secret: null });
  const other = await call("POST", "/v1/things", { headers, body: { name: "cd" } });
  expect([other.status, other.json.code]).toEqual([409, "idempotency_conflict"]);
  clock.advance(25 * 3600_000);
  const next = await call("POST", "/v1/things", { headers, body: { name: "cd" } });
  expect(next.headers["idempotent-replayed"]).toBeUndefined();
  const rows = await database.db.selectFrom("idempotency_keys").selectAll().execute();
  expect(JSON.stringify(rows)).not.toContain(secretInDetail);
});

test("returns 409 with Retry-After while a key's request runs, and takes the key over when its process is dead", async () => {
  const headers = { "idempotency-key": "key-2" };
  const running = call("POST", "/v1/fail/wait", { headers });
  // A second request sent before this would take the key itself, and wait.
  const key = database.db.selectFrom("idempotency_keys").select("state").where("key", "=", "key-2");
  await expect.poll(() => key.execute()).toEqual([{ state: "running" }]);
  const refused = await call("POST", "/v1/fail/wait", { headers });
  expect([refused.status, refused.json.code]).toEqual([409, "idempotency_in_progress"]);
  expect(refused.headers["retry-after"]).toBe("1");
  release();
  expect((await running).status).toBe(202);
  const died = {
    caller: "tok_test",
    route: "sandboxFail",
    key: "key-3",
    body_hash: "x",
    state: "running" as const,
  };
  await database.db
    .insertInto("idempotency_keys")
    .values({ ...died, process_id: crypto.randomUUID(), expires_at: new Date(clock.now().getTime() - 1) })
    .execute();
  expect((await call("POST", "/v1/fail/x", { headers: { "idempotency-key": "key-3" } })).status).toBe(202);
});

test("replays the resource that a request recorded without a stored response", async () => {
  const as = (key: string) => ({ headers: { "idempotency-key": key } });
  const before = made;
  expect((await call("POST", "/v1/fail/noted-crash", as("noted-1"))).status).toBe(500);
  const again = await call("POST", "/v1/fail/noted-crash", as("noted-1"));
  expect([again.status, again.json, again.headers["idempotent-replayed"]]).toEqual([
    202,
    { id: before + 1 },
    "true",
  ]);

  const running = call("POST", "/v1/fail/noted-wait", as("noted-2"));
  const row = () =>
    database.db.selectFrom("idempotency_keys").selectAll().where("key", "=", "noted-2").executeTakeFirst();
  await expect.poll(async () => (await row())?.made).toEqual([{ id: before + 2 }]);
  // The request still runs in this process, although its lease has expired.
  clock.advance(31_000);
  expect((await call("POST", "/v1/fail/noted-wait", as("noted-2"))).json.code).toBe(
    "idempotency_in_progress",
  );
  // Another process took over the key, so the response is not stored.
  await sql`update idempotency_keys set process_id = gen_random_uuid() where key = 'noted-2'`.execute(
    database.db,
  );
  release();
  await running;
  const after = await call("POST", "/v1/fail/noted-wait", as("noted-2"));
  expect([after.status, after.json]).toEqual([202, { id: before + 2 }]);
  expect(made).toBe(before + 2);
});

test("records each resource of an activity in the activity's transaction, and no other resource", async () => {
  const as = (key: string) => ({ headers: { "idempotency-key": key } });
  for (const [how, things] of [
    ["deed-crash", 1],
    ["deeds-crash", 2],
  ] as const) {
    const before = made;
    expect((await call("POST", `/v1/fail/${how}`, as(how))).status).toBe(500);
    const again = await call("POST", `/v1/fail/${how}`, as(how));
    expect([again.status, again.json, made]).toEqual([202, { id: before + things }, before + things]);
  }
  const before = made;
  for (const times of [1, 2]) {
    expect((await call("POST", "/v1/fail/deed-undone", as("undone"))).status).toBe(500);
    expect(made).toBe(before + times);
  }
});

test("runs a request again when its recorded resource was never completed, for only one of several retries", async () => {
  const crash = { headers: { "idempotency-key": "nothing" } };
  expect((await call("POST", "/v1/fail/noted-crash", crash)).status).toBe(500);
  const before = made;
  cameToNothing = before;
  expect((await call("POST", "/v1/fail/noted-crash", crash)).status).toBe(500);
  expect(made).toBe(before + 1);
  const again = await call("POST", "/v1/fail/noted-crash", crash);
  expect([again.status, again.json, made]).toEqual([202, { id: before + 1 }, before + 1]);

  const { IdempotencyKeys } = await import("./idempotency.ts");
  const [one, other] = [0, 1].map(() => new IdempotencyKeys(database.db, clock, silentLog));
  const request = { caller: "c", route: "r", key: "nothing", bodyHash: "h" };
  await one!.begin(request);
  await one!.note(database.db, request, { id: 1 });
  await one!.release(request);
  await one!.restart(request);
  await expect(other!.restart(request)).rejects.toThrow("still running");
  for (const keys of [one!, other!]) keys.close();
});

test("runs nothing for a request that lost its key to another process", async () => {
  const { deleteStoredResponses: forgetAnswers, IdempotencyKeys } = await import("./idempotency.ts");
  const slow = new IdempotencyKeys(database.db, clock, silentLog);
  const next = new IdempotencyKeys(database.db, clock, silentLog);
  const request = { caller: "c", route: "r", key: "lost", bodyHash: "h" };
  expect(await slow.begin(request)).toBeUndefined();
  clock.advance(31_000);
  expect(await next.begin(request)).toBeUndefined();
  await expect(slow.note(database.db, request, {})).rejects.toThrow("still running");
  await slow.release(request);
  const run = { run_id: "run_1" };
  await next.note(database.db, request, run);
  clock.advance(31_000);
  expect(await slow.begin(request)).toEqual({ made: [run] });
  clock.advance(24 * 3600_000);
  expect(await slow.begin(request)).toBeUndefined();
  await slow.note(database.db, request, run);
  // Keys of runs that must leave no trace are deleted too, with or without a response.
  await forgetAnswers(database.db, "r", ["run_1"]);
  const rows = database.db.selectFrom("idempotency_keys").select("key").where("key", "=", "lost");
  expect(await rows.execute()).toEqual([]);
  slow.close();
  next.close();
});

test("replays an error but not a fault, and refuses a malformed key", async () => {
  const teapots = { headers: { "idempotency-key": "key-4" } };
  await call("POST", "/v1/fail/teapot", teapots);
  const replayed = await call("POST", "/v1/fail/teapot", teapots);
  expect([replayed.status, replayed.headers["idempotent-replayed"]]).toEqual([418, "true"]);
  const crashes = { headers: { "idempotency-key": "key-5" } };
  await call("POST", "/v1/fail/crash", crashes);
  const before = made;
  expect((await call("POST", "/v1/fail/crash", crashes)).status).toBe(500);
  expect(made).toBe(before + 1);
  const long = await call("POST", "/v1/fail/x", { headers: { "idempotency-key": "k".repeat(129) } });
  expect([long.status, long.json.detail]).toEqual([
    400,
    "idempotency-key: must be 1 to 128 printable ASCII characters",
  ]);
});

test("replays a program's output with NUL byte for byte", async () => {
  const { IdempotencyKeys } = await import("./idempotency.ts");
  const keys = new IdempotencyKeys(database.db, clock, silentLog);
  const request = { caller: "c", route: "r", key: "nul", bodyHash: "h" };
  await keys.begin(request);
  await keys.finish(request, { status: 200, headers: {}, text: '{"stdout":"a\\u0000b"}' });
  expect(await keys.begin(request)).toMatchObject({ answer: { text: '{"stdout":"a\\u0000b"}' } });
  keys.close();
});

test("limits requests per token with headers on every response, and does not limit a session", async () => {
  const token = { tokenId: "tok_limits", id: "tok_limits" };
  const limited = await createHttpServer(
    {
      config: testConfig({ rateLimitPlatformStarter: "3" }),
      db: database.db,
      clock,
      log: silentLog,
    },
    { platform: routesOf("platform", "/api/v1"), sandbox: [], agent: [] },
    {
      findActor: async ({ kind }) =>
        kind === "token" ? { ...actor, ...token } : { ...actor, kind: "user", tokenId: null },
    },
  );
  const get = (headers: Record<string, string>) =>
    limited.fastify.inject({ url: "/api/v1/things/x", headers });
  const bearer = { authorization: "Bearer x" };
  for (const remaining of ["2", "1", "0"]) {
    const { headers, statusCode } = await get(bearer);
    expect([statusCode, headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]]).toEqual([
      200,
      "3",
      remaining,
    ]);
  }
  const refused = await get(bearer);
  expect(refused.statusCode).toBe(429);
  expect(refused.headers["retry-after"]).toBe("60");
  expect(refused.json()).toMatchObject({ code: "rate_limited", retry_after: 60 });
  const session = await get({ cookie: "kontor_session=x" });
  expect([session.statusCode, session.headers["x-ratelimit-limit"]]).toEqual([200, undefined]);
  clock.advance(60_000);
  expect((await get(bearer)).statusCode).toBe(200);
  await limited.close();
});

test("accepts a cookie only from the console's own pages, and a token from any origin", async () => {
  const cookie = { cookie: "kontor_session=good", host: "console.test" };
  const remove = (headers: Record<string, string>) =>
    call("DELETE", "/v1/things/x", { token: null, headers: { ...cookie, ...headers } }).then(
      ({ status }) => status,
    );
  expect(await remove({ origin: "http://console.test" })).toBe(204);
  expect(await remove({})).toBe(204);
  expect(await remove({ origin: "http://evil.test" })).toBe(403);
  expect(await remove({ origin: "null" })).toBe(403);
  expect(await remove({ "sec-fetch-site": "cross-site" })).toBe(403);
  expect(await remove({ origin: "http://evil.test", authorization: "Bearer good" })).toBe(204);
});

test("streams frames with ids and split lines, after headers with the request id", async () => {
  const response = await server.fastify.inject({
    url: "/v1/stream",
    headers: { authorization: "Bearer good" },
  });
  expect(response.headers["content-type"]).toMatch(/^text\/event-stream/);
  expect(response.headers["x-request-id"]).toBeTruthy();
  expect(response.payload).toBe(
    'retry: 2000\n\nid: 1\nevent: number\ndata: {"n":1,"text":"a\\nb"}\n\nid: 2\nevent: number\ndata: {"n":2,"text":"a\\nb"}\n\n',
  );
});

test("aborts the handler's signal when its reader disconnects", async () => {
  const port = await listening();
  const headers = { authorization: "Bearer good" };
  const reader = httpRequest({ port, host: "127.0.0.1", path: "/v1/endless", headers }, (response) => {
    response.once("data", () => reader.destroy());
    response.on("error", () => undefined);
  });
  reader.on("error", () => undefined).end();
  await expect.poll(() => heard).toBe(true);
});

test("requires Content-Length for a streamed upload, within the limit", async () => {
  const headers = { authorization: "Bearer good", "content-type": "text/plain" };
  const upload = (payload: Buffer) =>
    server.fastify.inject({ method: "PUT", url: "/v1/upload", headers, payload });
  expect((await upload(Buffer.alloc(1000))).json()).toEqual({ bytes: 1000 });
  expect((await upload(Buffer.alloc(1001))).statusCode).toBe(413);
  const chunked = await server.fastify.inject({
    method: "PUT",
    url: "/v1/upload",
    headers,
    payload: Readable.from([Buffer.alloc(5)]),
  });
  expect([chunked.statusCode, chunked.json().code]).toEqual([411, "length_required"]);
});

test("reports a living process on /healthz, and on /readyz a reachable database, except while it drains", async () => {
  expect((await call("GET", "/healthz", { token: null })).json).toEqual({ status: "ok" });
  const other = await createHttpServer(
    { config: testConfig(), db: database.db, clock, log: silentLog },
    { platform: [], sandbox: [], agent: [] },
    { findActor: async () => undefined, readiness: async () => ({ ready: true, templates: [] }) },
  );
  const ready = () => other.fastify.inject({ url: "/readyz" });
  expect((await ready()).json()).toEqual({ ready: true, templates: [], database: true, draining: false });
  other.startDraining();
  expect((await ready()).statusCode).toBe(503);
  await other.close();
});

test("serves metrics to the operator's full-access token, and to loopback only with the setting on", async () => {
  const getMetrics = async (
    config: Parameters<typeof testConfig>[0],
    caller: Partial<Actor> | null,
    headers: Record<string, string> = {},
  ) => {
    const other = await createHttpServer(
      { config: testConfig(config), db: database.db, clock, log: silentLog },
      { platform: [], sandbox: [], agent: [] },
      { findActor: async () => (caller === null ? undefined : { ...actor, ...caller }) },
    );
    const shown = caller === null ? headers : { ...headers, authorization: "Bearer x" };
    const { statusCode, payload } = await other.fastify.inject({ url: "/metrics", headers: shown });
    await other.close();
    expect(payload.includes("kontor_http_request_duration_seconds_bucket")).toBe(statusCode === 200);
    return statusCode;
  };
  expect(await getMetrics({}, { isOperator: true, scopes: null })).toBe(200);
  expect(await getMetrics({}, { isOperator: true, scopes: ["platform:read"] })).toBe(401);
  expect(await getMetrics({}, { isOperator: false, scopes: null })).toBe(401);
  expect(await getMetrics({}, null)).toBe(401);
  const open = { metricsLoopback: "on" };
  expect(await getMetrics(open, null)).toBe(200);
  expect(await getMetrics(open, null, { "x-forwarded-for": "198.51.100.7" })).toBe(401);
  expect(await getMetrics(open, null, { forwarded: "for=198.51.100.7" })).toBe(401);
});

test("loads no resource of other origins in the pages of the documents", async () => {
  for (const [path, api] of [
    ["/docs", "platform"],
    ["/docs/sandbox", "sandbox"],
    ["/docs/agent", "agent"],
  ]) {
    const page = await call("GET", path!, { token: null });
    expect(page.status).toBe(200);
    expect(page.text).toContain(`data-api="${api}"`);
    expect(page.text).not.toMatch(/https?:\/\//);
    expect(page.headers["content-security-policy"]).toContain("default-src 'none'");
  }
  expect((await call("GET", "/docs/assets/swagger-ui-bundle.js", { token: null })).status).toBe(200);
  expect((await call("GET", "/docs/assets/package.json", { token: null })).status).toBe(404);
});

test("waits for running requests on close, and cuts streams after the grace period", async () => {
  const other = await createHttpServer(
    { config: testConfig(), db: database.db, clock, log: silentLog },
    { platform: [], sandbox: routesOf("sandbox", "/v1"), agent: [] },
    { findActor: async () => actor },
  );
  const address = { host: "127.0.0.1", port: await other.listen({ host: "127.0.0.1", port: 0 }) };
  const headers = { authorization: "Bearer good" };
  const send = (method: string, path: string, onData: () => void = () => {}) =>
    new Promise<string>((resolve) => {
      const sent = httpRequest({ ...address, method, path, headers }, (response) => {
        response.on("data", onData);
        response.on("end", () => resolve(`ended ${response.statusCode}`));
        response.on("error", () => resolve("cut"));
      });
      sent.on("error", () => resolve("cut")).end();
    });
  const before = made;
  const running = send("POST", "/v1/fail/wait");
  let isStreaming = false;
  const stream = send("GET", "/v1/endless", () => (isStreaming = true));
  await expect.poll(() => isStreaming && made > before).toBe(true);
  const closing = other.close(300);
  release();
  expect(await running).toBe("ended 202");
  expect(await stream).toMatch(/^(cut|ended 200)$/);
  await closing;
  expect(await send("GET", "/healthz")).toBe("cut");
});

test("refuses malformed HTTP, and HTTP/1.1 without Host, in JSON with the code of invalid input", async () => {
  const port = await listening();
  for (const [text, detail] of [
    ["GET /healthz HTTP/1.1\r\n\r\n", "Send a Host header: HTTP/1.1 requires it."],
    ["GARBAGE\r\n\r\n", "This is not a valid HTTP request; send HTTP/1.1."],
  ] as const) {
    const socket = connect(port, "127.0.0.1").setEncoding("utf8");
    socket.write(text);
    const [head = "", body = ""] = (await Array.fromAsync(socket)).join("").split("\r\n\r\n");
    expect(head).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
    expect(JSON.parse(body.replace(/^[0-9a-f]+\r\n(.*)\r\n0$/s, "$1"))).toEqual({
      detail,
      message: detail,
      code: "invalid_request",
    });
  }
});

test("responds in our format to malformed or oversized HTTP", async () => {
  const port = await listening();
  const status = await new Promise<number>((resolve, reject) => {
    httpRequest(
      { port, host: "127.0.0.1", path: "/healthz", headers: { "x-long": "x".repeat(20_000) } },
      (response) => {
        response.resume();
        resolve(response.statusCode ?? 0);
      },
    )
      .on("error", reject)
      .end();
  });
  expect(status).toBe(431);
});
