import { afterAll, beforeAll, expect, test } from "vitest";
import { isSigned, startReceiver, type Receiver } from "@kontor/server/sandbox/testing/receiver.ts";
import { eventually } from "../support/answers.ts";
import { startServer, type Server } from "../support/server.ts";

/** These tests have their own server, because it may call the loopback, unlike the shared server. */
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

test("a webhook receives a sandbox's events, signed and in order, even after the server was killed", async () => {
  const made = await server.api("POST", "/v1/sandboxes/webhooks", { body: { url: receiver.url } });
  expect(made).toMatchObject({ status: 201, body: { id: expect.stringMatching(/^whk_/), active: true } });
  const { secret } = made.body as { secret: string };
  const eventsOf = (id: string) =>
    receiver.received.filter(({ json }) => json.data["sandbox_id"] === id).map(({ json }) => json.event);

  const first = await create();
  await server.api("DELETE", `/v1/sandboxes/${first}`);
  await eventually(
    async () => eventsOf(first),
    (events) => events.length === 2,
  );
  expect(eventsOf(first)).toEqual(["sandbox.created", "sandbox.terminated"]);
  expect(receiver.received.every((got) => isSigned(got, secret))).toBe(true);

  // The receiver fails while the server is killed; the next server sends the pending deliveries.
  receiver.answer = (_, response) => response.writeHead(503).end();
  const second = await create();
  await eventually(
    async () => eventsOf(second),
    (events) => events.length > 0,
  );
  await server.kill9();
  receiver.received.length = 0;
  receiver.answer = (_, response) => response.writeHead(200).end();
  await server.start();
  await server.api("DELETE", `/v1/sandboxes/${second}`);
  await eventually(
    async () => eventsOf(second),
    (events) => events.includes("sandbox.terminated"),
    60_000,
  );
  expect([...new Set(eventsOf(second))]).toEqual(["sandbox.created", "sandbox.terminated"]);

  const feed = await server.api("GET", `/v1/sandboxes/events?sandbox_id=${second}`);
  expect(feed.body.items.map(({ event }: { event: string }) => event)).toEqual([
    "sandbox.terminated",
    "sandbox.created",
  ]);
}, 120_000);

test("refuses a webhook to a private address in any notation", async () => {
  for (const url of ["http://10.0.0.1/", "http://169.254.169.254/", "http://[::1]:8080/"]) {
    const refused = await server.api("POST", "/v1/sandboxes/webhooks", { body: { url } });
    expect(refused).toMatchObject({ status: 400, body: { code: "invalid_request" } });
  }
});
