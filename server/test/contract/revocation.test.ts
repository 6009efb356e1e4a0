/** Streams of every kind end when the right to read them ends: a revoked token, an ended session, a lost membership. */
import { afterEach, expect, test } from "vitest";
import { WebSocket } from "ws";
import { clearActorCache } from "#accounts/find-actor.ts";
import { hashSecret, newSecret } from "#accounts/secrets.ts";
import { sessionCookie } from "#http/credential.ts";
import { makeTeam, makeToken } from "../factories.ts";
import { run } from "./cases/agent.ts";
import { cases } from "./cases/all.ts";
import { openWorld } from "./world.ts";

const world = await openWorld();
const { db } = world.app;
const { userId } = world.owner;
const address = await world.listen();

interface Opening {
  path: string;
  body?: unknown;
}

const paramsOf = async (operationId: string) => (await cases[operationId]!.success(world)).params!;

/** Streams that do not end by themselves, by kind. */
const kinds: Record<string, () => Promise<Opening>> = {
  "a run's events": async () => ({ path: `/v1/agents/runs/${(await run(world)).run_id}/stream` }),
  "an app's log": async () => {
    const { project_id } = await paramsOf("getProjectLogs");
    return { path: `/api/v1/projects/${project_id}/logs?follow=true` };
  },
  "a function's log": async () => {
    const { function_id } = await paramsOf("getFunctionLogs");
    return { path: `/api/v1/functions/${function_id}/logs?follow=true` };
  },
  "a deployment's log": async () => {
    const { deployment_id = "" } = await paramsOf("readDeploymentLogs");
    const unfinished = { status: "building" as const, finished_at: null };
    await db.updateTable("deployments").set(unfinished).where("id", "=", deployment_id).execute();
    return { path: `/api/v1/deployments/${deployment_id}/logs?follow=true` };
  },
  "a template's log": async () => {
    // The build stays pending, because no test starts it.
    const { body } = await cases["createTemplate"]!.success(world);
    const { json } = await world.call("POST", "/v1/templates", { token: world.owner.token, body });
    return { path: `/v1/templates/${(json as { id: string }).id}/logs?follow=true` };
  },
  "a command's output": async () => {
    const { id, cmd } = await paramsOf("readCommandLogs");
    return { path: `/v1/sandboxes/${id}/commands/${cmd}/logs?follow=true` };
  },
  "an exec's output": async () => {
    const { id } = await paramsOf("execCommand");
    return { path: `/v1/sandboxes/${id}/exec`, body: { command: "exec /bin/sleep 600", stream: true } };
  },
  "changes of files": async () => {
    const { id } = await paramsOf("watchFiles");
    return { path: `/v1/sandboxes/${id}/files/watch?path=/workspace` };
  },
};

interface Way {
  headers: () => Promise<Record<string, string>>;
  revoke: () => Promise<unknown>;
}

const bearer = async () => ({ authorization: `Bearer ${(await makeToken(db, userId)).plaintext}` });
const memberships = () => db.deleteFrom("team_members").where("user_id", "=", userId);

/** Functions that revoke the right to read. They change rows directly, like another process. */
const ways: Record<string, Way> = {
  "the token is revoked": {
    headers: bearer,
    revoke: () =>
      db
        .updateTable("api_tokens")
        .set({ revoked_at: new Date() })
        .where("user_id", "=", userId)
        .where("name", "=", "test")
        .where("token_hash", "!=", hashSecret(world.owner.token))
        .execute(),
  },
  "the session ends": {
    headers: async () => {
      const secret = newSecret("ses_");
      const expires_at = new Date(Date.now() + 3_600_000);
      const session = {
        user_id: userId,
        token_hash: hashSecret(secret),
        expires_at,
        user_agent: null,
        ip: null,
      };
      await db.insertInto("sessions").values(session).execute();
      return { cookie: `${sessionCookie}=${secret}` };
    },
    revoke: () => db.deleteFrom("sessions").where("user_id", "=", userId).execute(),
  },
  "the person is removed from a team": {
    headers: async () => {
      await makeTeam(db, { [userId]: "member" });
      clearActorCache(world.app);
      return bearer();
    },
    revoke: () => memberships().execute(),
  },
};

afterEach(() => clearActorCache(world.app));

/** Resolves when the body ends or breaks. */
async function waitForEnd(response: Response): Promise<void> {
  try {
    for await (const _ of response.body!);
  } catch {
    // A body that broke off has ended as well.
  }
}

async function open({ path, body }: Opening, credential: Record<string, string>): Promise<Response> {
  const response = await fetch(`${address}${path}`, {
    headers: { ...credential, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
  });
  expect([response.status, response.headers.get("content-type")]).toEqual([
    200,
    "text/event-stream; charset=utf-8",
  ]);
  return response;
}

test.each(Object.keys(ways))("event streams of every kind end when %s", { timeout: 60_000 }, async (way) => {
  const openings: [string, Opening][] = [];
  for (const [kind, opening] of Object.entries(kinds)) openings.push([kind, await opening()]);
  const { headers, revoke } = ways[way]!;
  const credential = await headers();
  const left = new Set<string>();
  const ends: Promise<unknown>[] = [];
  for (const [kind, opening] of openings) {
    const response = await open(opening, credential);
    left.add(kind);
    ends.push(waitForEnd(response).then(() => left.delete(kind)));
  }
  expect([...left]).toEqual(Object.keys(kinds));
  await revoke();
  await expect.poll(() => [...left], { timeout: 30_000 }).toEqual([]);
  await Promise.all(ends);
});

test.each(Object.keys(ways))("a terminal's WebSocket closes when %s", { timeout: 60_000 }, async (way) => {
  const { id, pty } = await paramsOf("getPty");
  const { headers, revoke } = ways[way]!;
  const socket = new WebSocket(`${address.replace("http", "ws")}/v1/sandboxes/${id}/pty/${pty}`, {
    headers: await headers(),
  });
  const closed = new Promise((resolve) => socket.once("close", resolve));
  await new Promise((resolve) => socket.once("message", resolve));
  await revoke();
  expect(await closed).toBe(1008);
});

test("an event stream stays open when another credential is revoked", { timeout: 60_000 }, async () => {
  const opening = await kinds["an app's log"]!();
  const [first, second] = [await bearer(), { authorization: `Bearer ${world.owner.token}` }];
  const [revoked, kept] = [await open(opening, first), await open(opening, second)];
  const keptEnd = waitForEnd(kept).then(() => "ended");
  await ways["the token is revoked"]!.revoke();
  await waitForEnd(revoked);
  expect(await Promise.race([keptEnd, Promise.resolve("open")])).toBe("open");
});
