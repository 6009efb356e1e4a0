import { beforeAll, expect, onTestFinished, test } from "vitest";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import { defineRoute, streamed } from "../define-route.ts";
import { createHttpServer } from "../server.ts";
import { openEventStream } from "../sse.ts";

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
const routes = [
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
  // A request that wants no stream, and another workspace.
  expect((await watch("a@1", "")).response.status).toBe(200);
  expect((await watch("z@2")).response.status).toBe(200);

  expect(new Set(await statusesOf("b@1", 50))).toEqual(new Set([200]));
  const { response: full } = await watch("c@1");
  expect(await full.json()).toMatchObject({ code: "too_many_streams", limit: 100 });
  leave.abort();
  await expect.poll(async () => (await watch("c@1")).response.status, { timeout: 10_000 }).toBe(200);
});
