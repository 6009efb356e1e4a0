/** Tests WebSockets alone: a test route, a real server and real clients. */
import { once } from "node:events";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { WebSocket } from "ws";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { defineError } from "#lib/errors.ts";
import { silentLog, testClock, testConfig, testDatabase } from "../../../test/harness.ts";
import { defineRoute } from "../define-route.ts";
import { createHttpServer, type HttpServer } from "../server.ts";
import type { Socket } from "./socket.ts";

const notThere = defineError("not_there", 404, () => "It is not there.");

const actor: Actor = {
  kind: "api_token",
  id: "tok_test",
  label: "test",
  role: "owner",
  userId: "11111111-1111-4111-8111-111111111111",
  scopes: ["sandboxes:write"],
  tokenId: "tok_test",
  workspaces: [],
  ip: null,
};
const actors: Record<string, Actor> = {
  writer: actor,
  reader: { ...actor, scopes: ["sandboxes:read"] },
  console: { ...actor, scopes: null, tokenId: null },
};

/** The server's work with each socket, which each test sets. */
let serve: (socket: Socket) => Promise<void>;
let http: HttpServer;
let address: string;

const start = async (): Promise<void> => {
  http = await createHttpServer(
    { config: testConfig({ rateLimits: "off" }), db, clock: testClock(), log: silentLog },
    {
      platform: [],
      agent: [],
      sandbox: [
        defineRoute({
          api: "sandbox",
          method: "GET",
          path: "/v1/echo/{id}",
          operationId: "echo",
          tag: "t",
          summary: "",
          scope: "sandboxes:read",
          params: z.strictObject({ id: z.string() }),
          responses: { 200: z.object({ plain: z.boolean() }) },
          handler: () => ({ plain: true }),
          socket: {
            summary: "",
            description: "",
            scope: "sandboxes:write",
            query: z.strictObject({ times: z.int().min(1).max(9).default(1) }),
            takes: z.object({}),
            sends: z.object({}),
            errors: [],
            open: async ({ params, query }) => {
              if (params.id !== "a") throw notThere();
              return async (socket) => {
                await socket.send({ times: query.times });
                await serve(socket);
              };
            },
          },
        }),
      ],
    },
    { findActor: async ({ secret }) => actors[secret] },
  );
  address = `127.0.0.1:${await http.listen({ host: "127.0.0.1", port: 0 })}/v1/echo/a`;
};
const { db } = await testDatabase();
beforeAll(start);
afterAll(() => http.close());

const bearer = (name: string) => ({ headers: { authorization: `Bearer ${name}` } });

async function openSocket(path = "", protocols: string[] = [], options: object = bearer("writer")) {
  const socket = new WebSocket(`ws://${address}${path}`, protocols, options);
  onTestFinished(() => socket.terminate());
  const [first] = (await once(socket, "message")) as [Buffer];
  return { socket, first: first.toString() };
}

async function readRefusal(path: string, options: object = bearer("writer"), protocols: string[] = []) {
  const socket = new WebSocket(`ws://${address}${path}`, protocols, options);
  socket.on("error", () => {});
  const [, response] = await once(socket, "unexpected-response");
  const body = JSON.parse((await response.toArray()).join("")) as { code: string };
  return `${response.statusCode} ${body.code}`;
}

const echo = async (socket: Socket): Promise<void> => {
  for await (const message of socket.messages)
    await socket.send(typeof message === "string" ? { text: message } : message);
};

test("sends bytes and texts in both directions", async () => {
  serve = echo;
  const { socket, first } = await openSocket("?times=3");
  expect(first).toBe('{"times":3}');
  socket.send(Buffer.from([0, 255, 10]));
  expect(await once(socket, "message")).toEqual([Buffer.from([0, 255, 10]), true]);
  socket.send("grüße");
  const [text, isBinary] = await once(socket, "message");
  expect([String(text), isBinary]).toEqual(['{"text":"grüße"}', false]);
});

test("refuses a handshake with an ordinary response, by the socket's own scope, query and checks", async () => {
  expect(await readRefusal("", {})).toBe("401 unauthenticated");
  expect(await readRefusal("", bearer("nobody"))).toBe("401 unauthenticated");
  expect(await readRefusal("", bearer("reader"))).toBe("403 missing_scope");
  expect(await readRefusal("?times=10")).toBe("400 invalid_request");
  expect(await readRefusal("?other=1")).toBe("400 invalid_request");
  expect(await readRefusal("b")).toBe("404 not_there");
  expect(await readRefusal("", { ...bearer("writer"), protocolVersion: 8 })).toBe("400 bad_handshake");
});

test("serves an ordinary route at the same address without a handshake", async () => {
  const answer = await fetch(`http://${address}`, bearer("reader"));
  expect(await answer.json()).toEqual({ plain: true });
});

test("accepts a browser's token as a subprotocol, and does not send it back", async () => {
  serve = echo;
  const { socket } = await openSocket("", ["kontor", "kontor.bearer.writer"], {});
  expect(socket.protocol).toBe("kontor");
  expect(await readRefusal("", {}, ["kontor", "kontor.bearer.nobody"])).toBe("401 unauthenticated");
});

test("opens a socket with a session cookie from its own origin only", async () => {
  serve = echo;
  const cookie = "kontor_session=console";
  const host = address.split("/")[0]!;
  await openSocket("", [], { headers: { cookie, origin: `http://${host}` } });
  const foreign = { headers: { cookie, origin: "http://elsewhere.example" } };
  expect(await readRefusal("", foreign)).toBe("403 origin_refused");
});

test("slows down `send` when the peer does not read", async () => {
  let sent = 0;
  serve = async (socket) => {
    for (; !socket.signal.aborted; sent += 1) await socket.send(Buffer.alloc(64 * 1024));
  };
  const { socket } = await openSocket();
  socket.pause();
  let before = -1;
  await expect.poll(() => before === (before = sent), { interval: 300, timeout: 20_000 }).toBe(true);
  expect(sent).toBeLessThan(1000);
  socket.resume();
  await expect.poll(() => sent, { timeout: 20_000 }).toBeGreaterThan(before + 100);
});

test("stops reading when the handler takes no messages, and loses none", async () => {
  const gate = Promise.withResolvers<void>();
  const lengths: number[] = [];
  serve = async (socket) => {
    await gate.promise;
    for await (const message of socket.messages) lengths.push(message.length);
  };
  const { socket } = await openSocket();
  for (let count = 0; count < 200; count += 1) socket.send(Buffer.alloc(100_000));
  await expect.poll(() => socket.bufferedAmount, { interval: 300 }).toBeGreaterThan(1_000_000);
  gate.resolve();
  await expect.poll(() => lengths.length, { timeout: 20_000 }).toBe(200);
});

test("delivers messages that were sent before a close", async () => {
  const texts: unknown[] = [];
  serve = async (socket) => {
    for await (const message of socket.messages) texts.push(message);
    texts.push("end");
  };
  const { socket } = await openSocket();
  for (const text of ["a", "b", "c"]) socket.send(text);
  socket.close();
  await expect.poll(() => texts).toEqual(["a", "b", "c", "end"]);
});

test("ends only the socket whose message exceeds the limit", async () => {
  serve = echo;
  const [{ socket }, other] = [await openSocket(), await openSocket()];
  socket.send(Buffer.alloc(256 * 1024 + 1));
  expect((await once(socket, "close"))[0]).toBe(1009);
  other.socket.send("still");
  await once(other.socket, "message");
});

test("ends the socket, not the server, after a server fault", async () => {
  serve = async () => {
    throw new Error("a fault");
  };
  const { socket } = await openSocket();
  expect((await once(socket, "close"))[0]).toBe(1011);
});

test("closes a socket at the next check after its credential was revoked", async () => {
  vi.useFakeTimers({ toFake: ["setInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  serve = echo;
  actors["short"] = actor;
  const { socket } = await openSocket("", [], bearer("short"));
  vi.advanceTimersByTime(30_000);
  socket.send("still");
  await once(socket, "message");
  delete actors["short"];
  vi.advanceTimersByTime(30_000);
  expect((await once(socket, "close"))[0]).toBe(1008);
});

test("closes a socket whose peer does not respond to pings", async () => {
  vi.useFakeTimers({ toFake: ["setInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const gone = Promise.withResolvers<void>();
  serve = async (socket) => {
    for await (const _ of socket.messages);
    gone.resolve();
  };
  const { socket } = await openSocket();
  vi.advanceTimersByTime(30_000);
  await once(socket, "ping");
  socket.pause();
  await new Promise((resolve) => setTimeout(resolve, 50));
  vi.advanceTimersByTime(30_000);
  vi.advanceTimersByTime(30_000);
  await gone.promise;
});

test("notifies every socket when the server shuts down, and does not wait for the peers", async () => {
  serve = echo;
  const { socket } = await openSocket();
  const closed = once(socket, "close");
  await http.close(60_000);
  expect((await closed)[0]).toBe(1001);
  await start();
});
