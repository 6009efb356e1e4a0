import { listNotifications } from "#accounts/notifications/notifications.ts";
import { createServer, type ServerResponse } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { afterAll, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { DomainError } from "#lib/errors.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { hasJob, openJobs } from "#jobs/jobs.ts";
import { silentLog, testDatabase } from "../../../test/harness.ts";
import { recordEvent } from "../events/events.ts";
import { sandboxTasks } from "../jobs.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { terminateSandbox } from "../sandboxes/lifecycle/terminate.ts";
import { isSigned, startReceiver } from "../testing/receiver.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { deliver } from "./deliver.ts";
import { WebhookCreate } from "./schema.ts";
import { checkAddress, post } from "./send.ts";
import { takeLease } from "./store.ts";
import { enable, list, register, remove } from "./webhooks.ts";

const { db, pool } = await testDatabase();
const host = await testHost(db, { config: { allowPrivateHosts: "127.0.0.0/8" } });
const { actor, workspace } = await personWithTier(db, "enterprise");
const stranger = await personWithTier(db, "enterprise");
const receiver = await startReceiver();
afterAll(() => receiver.close());

beforeEach(async () => {
  receiver.received = [];
  receiver.answer = (_, response) => response.writeHead(204).end();
  for (const { id } of (await list(host.app, actor)).items) await remove(host.app, actor, id);
});

const hook = (input: Record<string, unknown> = {}) =>
  register(host.app, actor, WebhookCreate.parse({ url: receiver.url, ...input }));
const record = async (id: string) => (await list(host.app, actor)).items.find((webhook) => webhook.id === id);
const run = (id: string) => deliver(host.app, id, new AbortController().signal);
const tell = (sandboxId: string | null, summary: string) =>
  db.transaction().execute((tx) =>
    recordEvent(tx, {
      workspaceId: workspace.id,
      event: "sandbox.paused",
      sandboxId,
      at: host.clock.now(),
      outcome: "ok",
      summary,
      detail: { text: "ü ✓" },
      actor,
    }),
  );
const summaries = () => receiver.received.map(({ json }) => json.data["summary"]);
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? `${error.status} ${error.code}` : error),
  );

test("sends a delivery in the documented form, with a signature over its exact bytes", async () => {
  const webhook = await hook();
  const { id } = await createSandbox(host.app, actor, createInput());
  await run(webhook.id);
  const [got] = receiver.received;
  expect(got?.headers).toMatchObject({
    "content-type": "application/json",
    "user-agent": "Kontor-Webhooks/1",
    "x-service-event": "sandbox.created",
    "x-service-delivery": expect.stringMatching(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/),
  });
  expect(got?.json).toEqual({
    event: "sandbox.created",
    delivery_id: got?.headers["x-service-delivery"],
    timestamp: host.clock.now().toISOString(),
    data: { sandbox_id: id, outcome: "ok", summary: expect.any(String), detail: expect.any(Object) },
  });
  expect(isSigned(got!, webhook.secret ?? "")).toBe(true);
  expect(
    isSigned({ ...got!, body: Buffer.concat([got!.body, Buffer.from(" ")]) }, webhook.secret ?? ""),
  ).toBe(false);
  expect(await record(webhook.id)).toMatchObject({
    active: true,
    consecutive_failures: 0,
    last_delivery_at: host.clock.now().toISOString(),
    last_error: null,
  });
});

test("shows the secret once, and stores it encrypted", async () => {
  const { id, secret } = await hook();
  expect(secret).toMatch(/^whsec_[A-Za-z0-9]{40}$/);
  expect(await record(id)).not.toHaveProperty("secret");
  const stored = await db.selectFrom("sandbox_webhooks").selectAll().where("id", "=", id).executeTakeFirst();
  expect(stored?.secret_sealed.toString("latin1")).not.toContain(secret);
});

test("retries a failed delivery after 10 s with the same id and bytes, up to three attempts", async () => {
  const { id } = await hook();
  receiver.answer = (_, response) => response.writeHead(500).end();
  await tell("sbx_a", "first");
  await run(id);
  await run(id);
  expect(receiver.received).toHaveLength(1);
  expect(await record(id)).toMatchObject({
    consecutive_failures: 0,
    last_error: "The receiver responded with 500.",
  });
  for (let attempts = 2; attempts < 6; attempts += 1) {
    host.clock.advance(9_999);
    await run(id);
    expect(receiver.received).toHaveLength(Math.min(attempts - 1, 3));
    host.clock.advance(1);
    await run(id);
    expect(receiver.received).toHaveLength(Math.min(attempts, 3));
  }
  expect(new Set(receiver.received.map(({ body }) => body.toString())).size).toBe(1);
  expect(new Set(receiver.received.map(({ headers }) => headers["x-service-delivery"])).size).toBe(1);
  expect(await record(id)).toMatchObject({ active: true, consecutive_failures: 1 });
});

test("delays an event only until the earlier events of its sandbox are delivered", async () => {
  const { id } = await hook();
  let fails = 1;
  receiver.answer = (got, response) =>
    response.writeHead(got.json.data["sandbox_id"] === "sbx_a" && fails-- > 0 ? 503 : 200).end();
  await tell("sbx_a", "a1");
  await tell("sbx_a", "a2");
  await tell("sbx_b", "b1");
  await run(id);
  expect(new Set(summaries())).toEqual(new Set(["a1", "b1"]));
  host.clock.advance(10_000);
  await run(id);
  expect(summaries().filter((summary) => summary !== "b1")).toEqual(["a1", "a1", "a2"]);
});

test("delivers many events of many sandboxes complete and in order to a receiver that fails at times", async () => {
  const { id } = await hook();
  const tried = new Set<string>();
  receiver.answer = (got, response) => {
    const stumbles = !tried.has(got.json.delivery_id) && got.json.delivery_id.endsWith("7");
    tried.add(got.json.delivery_id);
    if (!stumbles) delivered.push([String(got.json.data["sandbox_id"]), String(got.json.data["summary"])]);
    response.writeHead(stumbles ? 500 : 200).end();
  };
  const delivered: [string, string][] = [];
  const sandboxes = Array.from({ length: 40 }, (_, n) => `sbx_${n}`);
  await Promise.all(
    sandboxes.map(async (sandbox) => {
      for (let n = 0; n < 5; n += 1) await tell(sandbox, String(n));
    }),
  );
  for (let rounds = 0; rounds < 8 && delivered.length < 200; rounds += 1) {
    await run(id);
    host.clock.advance(10_000);
  }
  for (const sandbox of sandboxes) {
    expect(delivered.filter(([of]) => of === sandbox).map(([, n]) => n)).toEqual(["0", "1", "2", "3", "4"]);
  }
});

test("disables a webhook after twenty failed deliveries in a row, and resets the count at a success or an enable", async () => {
  const { id } = await hook();
  const fail = async (count: number) => {
    receiver.answer = (_, response) => response.writeHead(410).end();
    for (let n = 0; n < count; n += 1) await tell(`sbx_${n}`, "x");
    for (let attempts = 0; attempts < 3; attempts += 1) {
      await run(id);
      host.clock.advance(10_000);
    }
  };
  await fail(19);
  expect(await record(id)).toMatchObject({ active: true, consecutive_failures: 19 });
  receiver.answer = (_, response) => response.writeHead(200).end();
  await tell("sbx_ok", "ok");
  await run(id);
  expect(await record(id)).toMatchObject({ active: true, consecutive_failures: 0, last_error: null });
  await fail(22);
  expect(await record(id)).toMatchObject({ active: false, last_error: "The receiver responded with 410." });
  const news = (await listNotifications(host.app, actor)).filter(({ target }) => target.id === id);
  expect(news).toMatchObject([
    { kind: "webhook_disabled", body: expect.stringContaining("The receiver responded with 410.") },
  ]);
  receiver.received = [];
  await tell("sbx_no", "not sent");
  await run(id);
  expect(receiver.received).toEqual([]);
  expect(await enable(host.app, actor, id)).toMatchObject({
    active: true,
    consecutive_failures: 0,
    last_error: null,
  });
  await tell("sbx_yes", "sent");
  receiver.answer = (_, response) => response.writeHead(200).end();
  await run(id);
  expect(summaries()).toEqual(["sent"]);
});

test("does not follow redirects and counts them as failures", async () => {
  const { id } = await hook();
  receiver.answer = (_, response) => response.writeHead(302, { location: `${receiver.url}/elsewhere` }).end();
  await tell("sbx_a", "x");
  await run(id);
  expect(receiver.received.map(({ path }) => path)).toEqual(["/hook"]);
  expect(await record(id)).toMatchObject({ last_error: "The receiver responded with 302." });
});

test("fails a delivery without a response within ten seconds", async () => {
  const { id } = await hook();
  receiver.answer = () => {};
  await tell("sbx_a", "x");
  // Shortens the wait to a hundredth.
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  const asked = vi.spyOn(AbortSignal, "timeout").mockImplementation((ms) => timeout(ms / 100));
  onTestFinished(() => asked.mockRestore());
  await run(id);
  expect(asked.mock.calls).toEqual([[10_000]]);
  expect(await record(id)).toMatchObject({ last_error: "No response within 10 s." });
});

test("delivers to a webhook only the events of its filter", async () => {
  const { id, event_types } = await hook({ event_types: ["sandbox.terminated", "sandbox.terminated"] });
  expect(event_types).toEqual(["sandbox.terminated"]);
  const row = await createSandbox(host.app, actor, createInput());
  await terminateSandbox(host.app, actor, row.id);
  await run(id);
  expect(receiver.received.map(({ json }) => json.event)).toEqual(["sandbox.terminated"]);
});

test("delivers nothing without the lease, and takes over when the lease of a dead holder is over", async () => {
  const { id } = await hook();
  await tell("sbx_a", "x");
  const until = new Date(host.clock.now().getTime() + 25_000);
  const dead = { lease: "00000000-0000-4000-8000-000000000000", now: host.clock.now(), until };
  await takeLease(db, id, dead);
  await run(id);
  expect(receiver.received).toEqual([]);
  host.clock.advance(25_001);
  await run(id);
  expect(summaries()).toEqual(["x"]);
});

test("commits an event together with its delivery, or neither", async () => {
  const { id } = await hook();
  await expect(
    db.transaction().execute(async (tx) => {
      await recordEvent(tx, {
        workspaceId: workspace.id,
        event: "sandbox.paused",
        sandboxId: "sbx_a",
        at: host.clock.now(),
        outcome: "ok",
        summary: "never",
        detail: {},
        actor,
      });
      throw new Error("no");
    }),
  ).rejects.toThrow("no");
  await run(id);
  expect(receiver.received).toEqual([]);
});

test("delivers and retries as a job of the queue", async () => {
  const time = { now: () => new Date() };
  const jobs = await openJobs({ db, pool, log: silentLog, hostId: "test", version: "test" });
  try {
    await jobs.startWorker(sandboxTasks({ ...host.app, clock: time }));
    host.clock.set(new Date());
    await hook();
    await Promise.all(Array.from({ length: 20 }, (_, n) => tell(`sbx_${n % 5}`, String(n))));
    await expect.poll(() => receiver.received.length, { timeout: 20_000 }).toBe(20);
    await expect.poll(() => db.selectFrom("sandbox_webhook_deliveries").selectAll().execute()).toEqual([]);
  } finally {
    await jobs.stop(5_000);
  }
});

test("delivers for another payer while ten webhooks of one payer do not respond", async () => {
  const tasks = sandboxTasks(host.app);
  const work = (id: string) =>
    tasks["sandbox.webhooks"]!({ webhook: id } as never, {
      attempt: 1,
      maxAttempts: 25,
      signal: new AbortController().signal,
    });
  const ids: string[] = [];
  for (let n = 0; n < 10; n += 1) ids.push((await hook({ event_types: ["sandbox.paused"] })).id);
  const silent: ServerResponse[] = [];
  receiver.answer = (_, response) => void silent.push(response);
  await tell("sbx_a", "silent");
  const workers: Promise<void>[] = [];
  for (const id of ids.slice(0, 4)) {
    workers.push(work(id));
    await expect.poll(() => silent.length).toBe(workers.length);
  }
  // Waiting jobs release their workers, and each has a later job in case this process dies.
  for (const id of ids.slice(4)) {
    await work(id);
    expect(await hasJob(db, `sandbox.webhooks:${id}:later`)).toBe(true);
  }
  expect(silent).toHaveLength(4);

  receiver.answer = (_, response) => response.writeHead(204).end();
  const other = await register(host.app, stranger.actor, WebhookCreate.parse({ url: receiver.url }));
  onTestFinished(() => remove(host.app, stranger.actor, other.id));
  await db.transaction().execute((tx) =>
    recordEvent(tx, {
      workspaceId: stranger.workspace.id,
      event: "sandbox.paused",
      sandboxId: "sbx_b",
      at: host.clock.now(),
      outcome: "ok",
      summary: "of another",
      detail: {},
      actor: stranger.actor,
    }),
  );
  await work(other.id);
  expect(summaries()).toEqual(["silent", "silent", "silent", "silent", "of another"]);
  for (const response of silent) response.writeHead(204).end();
  await Promise.all(workers);
  expect(summaries().filter((summary) => summary === "silent")).toHaveLength(10);
});

test("refuses private addresses, at the registration and at each delivery", async () => {
  const closed = { ...host.app, config: { ...host.app.config, allowPrivateHosts: [] } };
  for (const url of [
    receiver.url,
    "http://localhost/x",
    "http://[::1]/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://169.254.169.254/latest",
    "http://10.0.0.1/",
    "https://[::ffff:127.0.0.1]/",
  ]) {
    expect(await refusal(register(closed, actor, { url })), url).toBe("400 invalid_request");
  }
  const { id } = await hook();
  await tell("sbx_a", "x");
  await deliver(closed, id, new AbortController().signal);
  expect(receiver.received).toEqual([]);
  expect(await record(id)).toMatchObject({ last_error: expect.stringContaining("private or internal") });
});

test("connects to the checked address, also by name", async () => {
  const server = createServer((_, response) => response.writeHead(200).end());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const { port } = server.address() as AddressInfo;
    const url = new URL(`http://localhost:${port}/`);
    const message = { headers: {}, body: Buffer.from("{}"), owner: "workspace" };
    await post(url, parseOpenedHosts(["localhost"]), message);
    await expect(post(url, parseOpenedHosts([]), message)).rejects.toThrow("private or internal");
    await expect(checkAddress(url, parseOpenedHosts([]), "workspace")).rejects.toThrow("private or internal");
  } finally {
    server.close();
  }
});

test.each(["ftp://example.test/", "https://user:password@example.test/", "no url", "/x", "javascript:1", ""])(
  "rejects %j as the address of a webhook",
  (url) => {
    expect(WebhookCreate.safeParse({ url }).success).toBe(false);
  },
);

test("limits an account to ten webhooks, also for concurrent registrations", async () => {
  const tries = await Promise.all(Array.from({ length: 13 }, () => refusal(hook())));
  expect(tries.filter((one) => one === "409 webhook_limit_reached")).toHaveLength(3);
  expect((await list(host.app, actor)).items).toHaveLength(10);
});

test("hides webhooks from other owners, and deletes pending deliveries with the webhook", async () => {
  const { id } = await hook();
  await tell("sbx_a", "x");
  expect((await list(host.app, stranger.actor)).items).toEqual([]);
  expect(await refusal(enable(host.app, stranger.actor, id))).toBe("404 webhook_not_found");
  expect(await refusal(remove(host.app, stranger.actor, id))).toBe("404 webhook_not_found");
  await remove(host.app, actor, id);
  expect(await refusal(remove(host.app, actor, id))).toBe("404 webhook_not_found");
  await run(id);
  expect(receiver.received).toEqual([]);
});
