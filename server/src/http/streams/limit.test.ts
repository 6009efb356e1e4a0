import { once } from "node:events";
import { get, type IncomingMessage } from "node:http";
import { text } from "node:stream/consumers";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import { WebSocket } from "ws";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import { defineRoute, streamed } from "../define-route.ts";
import { createHttpServer } from "../server.ts";
import { openEventStream } from "./sse.ts";

const { db } = await testDatabase();
let base = "";

/** A test token holds its own name and its workspace, such as `a@1`. */
function actorOf(secret: string): Actor {
  const [id = "", workspace = ""] = secret.split("@");
  return {
    kind: "api_token",
    id,
    label: id,
    role: "owner",
    userId: `user-${workspace}`,
    scopes: null,
    tokenId: id,
    workspaces: [
      {
        id: workspace,
        kind: "personal",
        role: "owner",
        plan: "starter",
        sandboxTier: "free",
        suspended: false,
      },
    ],
    ip: null,
  };
}

const row = {
  api: "platform",
  tag: "Test",
  summary: "test",
  scope: "platform:read",
  rateLimit: "none",
} as const;
const floods: number[] = [];
const flooded = Promise.withResolvers<void>();
const routes = [
  defineRoute({
    ...row,
    method: "GET",
    path: "/api/v1/flood",
    operationId: "flood",
    responses: { 200: z.object({}) },
    events: z.object({}),
    handler: async ({ request, reply }) => {
      const stream = openEventStream(request, reply, { slowWindowMs: 500 });
      void (async () => {
        for (let sent = 0; !stream.signal.aborted; sent += 1) {
          await stream.send({ data: "x".repeat(1024 ** 2) });
          floods.push(sent);
        }
        flooded.resolve();
      })();
      return streamed;
    },
  }),
  defineRoute({
    ...row,
    method: "GET",
    path: "/api/v1/watch",
    operationId: "watch",
    query: z.object({ follow: z.stringbool().default(false) }),
    responses: { 200: z.object({ is_stream: z.boolean() }) },
    events: z.object({}),
    handler: async ({ query, request, reply }) => {
      if (!query.follow) return { is_stream: false };
      openEventStream(request, reply);
      return streamed;
    },
  }),
];

beforeAll(async () => {
  const app = { config: testConfig(), db, clock: testClock(), log: silentLog };
  const server = await createHttpServer(
    app,
    { platform: routes, sandbox: [], agent: [] },
    { findActor: async ({ secret }) => actorOf(secret) },
  );
  const port = await server.listen({ host: "127.0.0.1", port: 0 });
  base = `http://127.0.0.1:${port}/api/v1/watch`;
  return () => server.close();
});

async function watch(secret: string, query = "?follow=true") {
  const leave = new AbortController();
  onTestFinished(() => leave.abort());
  const response = await fetch(base + query, {
    headers: { authorization: `Bearer ${secret}` },
    signal: leave.signal,
  });
  return { response, leave };
}

async function statusesOf(secret: string, count: number): Promise<number[]> {
  const all = await Promise.all(Array.from({ length: count }, () => watch(secret)));
  return all.map(({ response }) => response.status);
}

test("limits a token to half of its plan's streams, and a workspace to all of them", async () => {
  expect(new Set(await statusesOf("a@1", 49))).toEqual(new Set([200]));
  const { response: last, leave } = await watch("a@1");
  expect(last.status).toBe(200);
  const { response: refused } = await watch("a@1");
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "5"]);
  expect(await refused.json()).toMatchObject({ code: "too_many_streams", limit: 50, retry_after: 5 });
  // Both requests are allowed: a request without a stream, and a stream of another workspace.
  expect((await watch("a@1", "")).response.status).toBe(200);
  expect((await watch("z@2")).response.status).toBe(200);

  expect(new Set(await statusesOf("b@1", 50))).toEqual(new Set([200]));
  const { response: full } = await watch("c@1");
  expect(await full.json()).toMatchObject({ code: "too_many_streams", limit: 100 });
  leave.abort();
  await expect.poll(async () => (await watch("c@1")).response.status, { timeout: 10_000 }).toBe(200);
});

test("ends a stream whose client reads no more bytes", async () => {
  const stuck = get(base.replace("watch", "flood"), {
    agent: false,
    headers: { authorization: "Bearer f@9" },
  });
  stuck.on("error", () => {});
  onTestFinished(() => void stuck.destroy());
  const [unread] = (await once(stuck, "response")) as [IncomingMessage];
  unread.on("error", () => {});
  await flooded.promise;
  expect(floods.length).toBeGreaterThan(0);
});

/** Starts a server with two streams per token, and a socket route whose work waits for the test. */
async function socketServer() {
  const began: string[] = [];
  const mayGoOn = Promise.withResolvers<void>();
  const routes = [
    defineRoute({
      ...row,
      api: "sandbox",
      scope: "sandboxes:read",
      method: "GET",
      path: "/v1/terminal/{id}",
      operationId: "terminal",
      params: z.object({ id: z.string() }),
      responses: { 200: z.object({}) },
      handler: () => ({}),
      socket: {
        summary: "",
        description: "",
        scope: "sandboxes:write",
        query: z.object({}),
        takes: z.object({}),
        sends: z.object({}),
        errors: [],
        open: async ({ params }) => {
          began.push(params.id);
          await mayGoOn.promise;
          if (params.id === "broken") throw new Error("the terminal did not start");
          return async (socket) => {
            await socket.send({ id: params.id });
          };
        },
      },
    }),
  ];
  const config = testConfig({ streamsStarter: "4" });
  const server = await createHttpServer(
    { config, db, clock: testClock(), log: silentLog },
    { platform: [], sandbox: routes, agent: [] },
    { findActor: async ({ secret }) => actorOf(secret) },
  );
  onTestFinished(() => server.close());
  const port = await server.listen({ host: "127.0.0.1", port: 0 });
  /** Resolves to "open", or to the status and code of the refusal. */
  const connect = async (id: string) => {
    const headers = { authorization: "Bearer a@1" };
    const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/terminal/${id}`, { headers });
    onTestFinished(() => socket.terminate());
    socket.on("error", () => {});
    const refused = once(socket, "unexpected-response").then(async ([, response]) => {
      const { statusCode, headers } = response as IncomingMessage;
      const { code } = JSON.parse(await text(response as IncomingMessage)) as { code: string };
      return [statusCode, code, headers["retry-after"]].join(" ");
    });
    return { socket, outcome: Promise.race([once(socket, "message").then(() => "open"), refused]) };
  };
  return { connect, began, goOn: mayGoOn.resolve };
}

test("refuses a socket beyond the limit before its work starts, and counts sockets that are opening", async () => {
  const { connect, began, goOn } = await socketServer();
  const first = await connect("a");
  const second = await connect("b");
  await expect.poll(() => began.length).toBe(2);
  const refusal = "429 too_many_streams 5";
  expect(await (await connect("c")).outcome).toBe(refusal);
  goOn();
  expect(await Promise.all([first.outcome, second.outcome])).toEqual(["open", "open"]);
  expect(await (await connect("d")).outcome).toBe(refusal);
  expect(began.toSorted((a, b) => (a < b ? -1 : 1))).toEqual(["a", "b"]);
  first.socket.close();
  await expect.poll(async () => (await connect("e")).outcome, { timeout: 10_000 }).toBe("open");
});

test("releases the slot of a socket when its work fails", async () => {
  const { connect, goOn } = await socketServer();
  goOn();
  for (let time = 0; time < 5; time++)
    expect(await (await connect("broken")).outcome).toMatch(/^500 internal_error/);
  expect(await (await connect("a")).outcome).toBe("open");
});
