import { afterAll, beforeAll, expect, test } from "vitest";
import { isSigned, startReceiver, type Receiver } from "@kontor/server/sandbox/testing/receiver.ts";
import { eventually } from "../support/answers.ts";
import { startServer, type Server } from "../support/server.ts";

/** A server of its own: it may call the loopback, which others may not. */
let server: Server;
let receiver: Receiver;

beforeAll(async () => {
  server = await startServer({
    KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8",
    KONTOR_POOL_SIZE: "0",
    KONTOR_POOL_MAX: "0",
  });
  receiver = await startReceiver();
});
afterAll(async () => {
  await receiver?.close();
  await server?.destroy();
});

async function create(): Promise<string> {
  const made = await server.api("POST", "/v1/sandboxes", { body: { template: "debian-12", network: "off" } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  return made.body.id as string;
}

test("a sandbox's life is told to a webhook, signed and in order, also when the server was killed meanwhile", async () => {
  const made = await server.api("POST", "/v1/sandboxes/webhooks", { body: { url: receiver.url } });
  expect(made).toMatchObject({ status: 201, body: { id: expect.stringMatching(/^whk_/), active: true } });
  const { secret } = made.body as { secret: string };
  const told = (id: string) =>
    receiver.received.filter(({ json }) => json.data["sandbox_id"] === id).map(({ json }) => json.event);

  const first = await create();
  await server.api("DELETE", `/v1/sandboxes/${first}`);
  await eventually(
    async () => told(first),
    (events) => events.length === 2,
  );
  expect(told(first)).toEqual(["sandbox.created", "sandbox.terminated"]);
  expect(receiver.received.every((got) => isSigned(got, secret))).toBe(true);

  // The receiver is away while the server dies: what was to be delivered is delivered by the next one.
  receiver.answer = (_, response) => response.writeHead(503).end();
  const second = await create();
  await eventually(
    async () => told(second),
    (events) => events.length > 0,
  );
  await server.kill9();
  receiver.received.length = 0;
  receiver.answer = (_, response) => response.writeHead(200).end();
  await server.start();
  await server.api("DELETE", `/v1/sandboxes/${second}`);
  await eventually(
    async () => told(second),
    (events) => events.includes("sandbox.terminated"),
    60_000,
  );
  expect([...new Set(told(second))]).toEqual(["sandbox.created", "sandbox.terminated"]);

  const feed = await server.api("GET", `/v1/sandboxes/events?sandbox_id=${second}`);
  expect(feed.body.items.map(({ event }: { event: string }) => event)).toEqual([
    "sandbox.terminated",
    "sandbox.created",
  ]);
}, 120_000);

test("a webhook of an address inside is refused, opened or not by its form", async () => {
  for (const url of ["http://10.0.0.1/", "http://169.254.169.254/", "http://[::1]:8080/"]) {
    const refused = await server.api("POST", "/v1/sandboxes/webhooks", { body: { url } });
    expect(refused).toMatchObject({ status: 400, body: { code: "invalid_request" } });
  }
});
