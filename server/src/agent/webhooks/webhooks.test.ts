import { createHmac } from "node:crypto";
import { sql } from "kysely";
import { Webhook as StandardWebhook } from "standardwebhooks";
import { expect, test } from "vitest";
import { setSuspended } from "#accounts/workspaces.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { silentLog, testClock } from "../../../test/harness.ts";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { pruneDeliveries } from "./receive.ts";

// The test uses the system clock, because the library of Standard Webhooks reads no other.
const clock = testClock(new Date());
const host = await agentHost({ clock, isIdle: true, config: { rateLimits: "on" } });
const hourMs = 3_600_000;
let made = 0;

type Owner = Person & { agent: string };

async function owner(plan: "starter" | "team" = "team"): Promise<Owner> {
  const person = await host.person({ plan });
  const name = `agent-${(made += 1)}`;
  await person.post("/v1/agents", { name, config: await modelConfig(person) });
  return { ...person, agent: `/v1/agents/${name}` };
}

async function webhook(of: Owner, body: object = {}): Promise<Json> {
  const { status, json } = await of.post(`${of.agent}/webhooks`, { name: "forge", ...body });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function deliver(
  { id, secret }: { id: string; secret?: string },
  body: string | Buffer = '{"title":"Broken"}',
  headers: Record<string, string> = { authorization: `Bearer ${secret}` },
): Promise<{ status: number; json: Json; headers: Headers }> {
  const response = await fetch(`${host.baseUrl}/v1/hooks/agents/${id}?page=2`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: new Uint8Array(Buffer.from(body)),
  });
  return { status: response.status, json: await response.json(), headers: response.headers };
}

const hmac = (secret: string, body: string | Buffer) =>
  `sha256=${createHmac("sha256", secret).update(body).digest("hex")}`;

async function saidTo(runId: string): Promise<string> {
  const row = await host.app.db
    .selectFrom("agent_messages")
    .select("message")
    .where("run_id", "=", runId)
    .executeTakeFirstOrThrow();
  return (row.message as Json).content[0].text;
}

test("returns a webhook's secret once, updates and deletes the webhook, and logs each change", async () => {
  const of = await owner();
  const { secret, ...json } = await webhook(of, { daily_cap: 3 });
  expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
  expect(json).toEqual({
    id: expect.stringMatching(/^agw_[a-z0-9]{20}$/),
    name: "forge",
    url: expect.stringMatching(new RegExp(`/v1/hooks/agents/${json.id}$`)),
    secret_hint: `…${secret.slice(-4)}`,
    input_template: "{{body}}",
    end_user_id: null,
    session: null,
    qualifier: "prod",
    daily_cap: 3,
    enabled: true,
    runs_today: 0,
    created_at: clock.now().toISOString(),
  });
  const path = `${of.agent}/webhooks/${json.id}`;
  expect((await of.get(`${of.agent}/webhooks`)).json).toEqual({ items: [json] });
  const changed = await of.call("PATCH", path, {
    ...json,
    input_template: "{{body.title}}",
    daily_cap: null,
  });
  expect(changed.json).toEqual({ ...json, input_template: "{{body.title}}", daily_cap: null });
  const reset = await of.call("PATCH", path, { input_template: null });
  expect(reset.json).toMatchObject({ input_template: "{{body}}" });
  const rotated = await of.post(`${path}/rotate`);
  expect(rotated).toMatchObject({ status: 200, json: { secret: expect.stringMatching(/^whsec_/) } });
  expect((await of.call("DELETE", path)).status).toBe(204);
  for (const gone of [
    await of.call("PATCH", path, {}),
    await of.call("DELETE", path),
    await of.post(`${path}/rotate`),
  ])
    expect(gone).toMatchObject({ status: 404, json: { code: "webhook_not_found" } });
  const deeds = await host.app.db
    .selectFrom("activity")
    .selectAll()
    .where("target_id", "=", json.id)
    .execute();
  expect(deeds.map(({ action }) => action)).toEqual([
    "agent_webhook.created",
    "agent_webhook.updated",
    "agent_webhook.updated",
    "agent_webhook.rotated",
    "agent_webhook.deleted",
  ]);
  expect(JSON.stringify(deeds)).not.toContain(secret.slice(6, 40));
});

test("does not return the secret again for a repeated creation request", async () => {
  const of = await owner();
  const send = () => of.call("POST", `${of.agent}/webhooks`, { name: "x" }, { "idempotency-key": "once" });
  const [first, again] = [await send(), await send()];
  expect(again.json).toEqual({ ...first.json, secret: null });
});

test.each([
  [{ input_template: "{{process.env}}" }, "/input_template"],
  [{ input_template: "x".repeat(8193) }, "/input_template"],
  [{ daily_cap: 0 }, "/daily_cap"],
  [{ secret: "mine" }, "/secret"],
])("refuses %j and names the field", async (body, pointer) => {
  const of = await owner();
  const { status, json } = await of.post(`${of.agent}/webhooks`, { name: "forge", ...body });
  expect([status, json]).toMatchObject([400, { code: "invalid_request", pointer }]);
});

test("limits the webhooks of an agent", async () => {
  const of = await owner();
  for (let n = 0; n < 50; n += 1) await webhook(of);
  const { status, json } = await of.post(`${of.agent}/webhooks`, { name: "x" });
  expect([status, json]).toMatchObject([409, { code: "webhook_limit_reached", allowed: 50 }]);
});

test("starts a run in its own session for a delivery, with the rendered template as input", async () => {
  const of = await owner();
  const hook = await webhook(of, {
    input_template:
      "{{body.title}} p{{query.page}} {{headers.x-event}} {{webhook.name}} {{headers.authorization}}",
  });
  const { status, json } = await deliver(hook, '{"title":"Broken"}', {
    authorization: `Bearer ${hook.secret}`,
    "x-event": "opened",
  });
  expect([status, json]).toEqual([
    202,
    { run_id: expect.stringMatching(/^run_/), session_id: expect.stringMatching(/^ses_/) },
  ]);
  expect(await saidTo(json.run_id)).toBe("Broken p2 opened forge ");
  expect((await of.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    trigger: { type: "webhook", id: hook.id },
    session_id: json.session_id,
    status: "queued",
  });
  expect((await of.get(`${of.agent}/webhooks`)).json.items[0].runs_today).toBe(1);
});

test("accepts each of the four forms of authentication, checked over the raw body", async () => {
  const of = await owner();
  const hook = await webhook(of);
  const body = Buffer.from('{ "b":1,\n"a": "\u00e4" }\n');
  const standard = new StandardWebhook(hook.secret);
  const now = clock.now();
  const signed = {
    "webhook-id": "msg_1",
    "webhook-timestamp": String(Math.floor(now.getTime() / 1000)),
    "webhook-signature": `v1,b2xk v1a,x ${standard.sign("msg_1", now, body)}`,
  };
  for (const headers of [
    { authorization: `bearer ${hook.secret}` },
    { "x-service-signature": hmac(hook.secret, body) },
    { "x-hub-signature-256": hmac(hook.secret, body).toUpperCase().replace("SHA256", "sha256") },
    signed,
  ]) {
    const { status, json } = await deliver(hook, body, headers as Record<string, string>);
    expect([status, Object.keys(headers), json]).toMatchObject([202, Object.keys(headers), {}]);
    expect(await saidTo(json.run_id)).toBe('{"b":1,"a":"ä"}');
  }
  // The library of Standard Webhooks accepts our test signatures.
  expect(standard.verify(body.toString(), signed)).toEqual({ b: 1, a: "ä" });
});

test("gives the same refusal to a sender without the secret as for an unknown address", async () => {
  const of = await owner();
  const hook = await webhook(of, { daily_cap: 1 });
  await of.call("PATCH", `${of.agent}/webhooks/${hook.id}`, { enabled: false });
  const other = await webhook(of);
  const body = "{}";
  const now = clock.now();
  const at = (ms: number, secret = hook.secret, id = "m") => {
    const date = new Date(now.getTime() + ms);
    return {
      "webhook-id": "m",
      "webhook-timestamp": String(Math.floor(date.getTime() / 1000)),
      "webhook-signature": new StandardWebhook(secret).sign(id, date, body),
    };
  };
  const refusals = [
    {},
    { authorization: `Bearer ${other.secret}` },
    { authorization: `Bearer ${of.token}` },
    { authorization: `Basic ${hook.secret}` },
    { authorization: `Bearer ${hook.secret}x` },
    { "x-service-signature": hmac(hook.secret, `${body} `) },
    { "x-service-signature": hmac(hook.secret, body).slice(7) },
    { "x-hub-signature-256": hmac(other.secret, body) },
    { "x-hub-signature-256": "sha256=" },
    at(0, other.secret),
    at(0, hook.secret, "another"),
    at(-6 * 60_000),
    at(6 * 60_000),
    { ...at(0), "webhook-timestamp": "soon" },
    { ...at(0), "webhook-id": "" },
  ];
  const answers = new Set<string>();
  for (const headers of refusals) {
    const { status, json } = await deliver(hook, body, headers);
    expect([status, json.code], JSON.stringify(headers)).toEqual([401, "signature_invalid"]);
    answers.add(JSON.stringify(json));
  }
  expect(answers.size).toBe(1);
  expect(await deliver({ ...hook, id: "agw_doesnotexist" })).toMatchObject({
    status: 404,
    json: { code: "webhook_not_found" },
  });
});

test("reports a disabled webhook only to a sender with the secret, and rejects the old secret after a rotation", async () => {
  const of = await owner();
  const hook = await webhook(of);
  const path = `${of.agent}/webhooks/${hook.id}`;
  await of.call("PATCH", path, { enabled: false });
  expect(await deliver(hook)).toMatchObject({ status: 409, json: { code: "webhook_disabled" } });
  await of.call("PATCH", path, { enabled: true });
  const { secret } = (await of.post(`${path}/rotate`)).json;
  expect((await deliver(hook)).status).toBe(401);
  expect((await deliver({ ...hook, secret })).status).toBe(202);
});

test("returns the same run for a repeated delivery within a day, and counts the delivery once", async () => {
  const of = await owner();
  const hook = await webhook(of, { daily_cap: 4 });
  const send = (headers: Record<string, string>) =>
    deliver(hook, "{}", { authorization: `Bearer ${hook.secret}`, ...headers });
  const first = await send({ "x-github-delivery": "d-1" });
  const again = await send({ "x-service-delivery": "d-1" });
  expect(again).toMatchObject({ status: 202, json: first.json });
  const both = await Promise.all([send({ "webhook-id": "d-2" }), send({ "webhook-id": "d-2" })]);
  expect(both.map(({ status }) => status)).toEqual([202, 202]);
  expect(both[0]!.json).toEqual(both[1]!.json);
  // A delivery without an id is always a new delivery.
  expect((await send({})).json.run_id).not.toBe((await send({})).json.run_id);
  const { items } = (await of.get(`${of.agent}/webhooks`)).json;
  expect(items[0].runs_today).toBe(4);
  // Although the cap is reached, a known delivery still returns its run.
  expect((await send({ "webhook-id": "d-1" })).json).toEqual(first.json);
  clock.advance(24 * hourMs);
  await pruneDeliveries(host.app.db, clock.now());
  const later = await send({ "x-github-delivery": "d-1" });
  expect([later.status, later.json.run_id === first.json.run_id]).toEqual([202, false]);
});

test("refuses deliveries beyond the daily cap, and resets the count at midnight UTC", async () => {
  const of = await owner();
  const hook = await webhook(of, { daily_cap: 2 });
  clock.set(new Date(Math.ceil(clock.now().getTime() / (24 * hourMs)) * 24 * hourMs + 23 * hourMs));
  const all = await Promise.all([1, 2, 3, 4].map(() => deliver(hook)));
  expect(all.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([202, 202, 429, 429]);
  const overCap = await deliver(hook);
  expect(overCap).toMatchObject({
    status: 429,
    json: { code: "daily_cap_reached", limit: "daily_cap", allowed: 2, retry_after: 3600 },
  });
  expect(overCap.headers.get("retry-after")).toBe("3600");
  clock.advance(hourMs);
  expect((await of.get(`${of.agent}/webhooks`)).json.items[0].runs_today).toBe(0);
  expect((await deliver(hook)).status).toBe(202);
});

test("returns an invoke's refusal to the sender, and neither counts nor stores the delivery", async () => {
  const of = await owner("starter");
  const hook = await webhook(of, { daily_cap: 1 });
  const headers = { authorization: `Bearer ${hook.secret}`, "webhook-id": "one" };
  const deliverRefused = async () => {
    const { status, json } = await deliver(hook, "{}", headers);
    return [status, json.code];
  };
  await of.call("PATCH", of.agent, { paused: true });
  expect(await deliverRefused()).toEqual([403, "agent_paused"]);
  await of.call("PATCH", of.agent, { paused: false });
  await of.post("/v1/agents/pause-all", { paused: true });
  expect(await deliverRefused()).toEqual([403, "agent_paused"]);
  await of.post("/v1/agents/pause-all", { paused: false });
  await setSuspended(host.app, systemActor("test"), of.workspaceId, true);
  expect(await deliverRefused()).toEqual([402, "account_suspended"]);
  await setSuspended(host.app, systemActor("test"), of.workspaceId, false);
  const sessions = [];
  for (const input of ["one", "two"])
    sessions.push((await of.post(`${of.agent}/invoke`, { input, wait_s: 0 })).json.session_id);
  expect(await deliverRefused()).toEqual([409, "session_cap_reached"]);
  for (const id of sessions) await of.call("DELETE", `${of.agent}/sessions/${id}`);
  const { items } = (await of.get("/v1/model-credentials")).json;
  await of.call("DELETE", `/v1/model-credentials/${items[0].id}`);
  expect(await deliverRefused()).toEqual([424, "credential_missing"]);
  expect((await of.get(`${of.agent}/webhooks`)).json.items[0].runs_today).toBe(0);
});

test("refuses an empty input, an oversized input, and an oversized body", async () => {
  const of = await owner();
  const hook = await webhook(of);
  expect(await deliver(hook, "")).toMatchObject({ status: 400, json: { code: "input_empty" } });
  expect(await deliver(hook, "x".repeat(64 * 1024))).toMatchObject({ status: 202 });
  expect(await deliver(hook, "x".repeat(64 * 1024 + 1))).toMatchObject({
    status: 413,
    json: { code: "input_too_large", limit_bytes: 65_536 },
  });
  expect(await deliver(hook, "x".repeat(1024 ** 2 + 1))).toMatchObject({
    status: 413,
    json: { code: "payload_too_large" },
  });
  // The whole text would take a gigabyte.
  const many = await webhook(of, { input_template: "{{body}}".repeat(1024) });
  expect(await deliver(many, "x".repeat(1024 ** 2))).toMatchObject({
    status: 413,
    json: { code: "input_too_large" },
  });
});

test("accepts a body of any content type, and hides the secret from the model if the body contains it", async () => {
  const of = await owner();
  const hook = await webhook(of, { input_template: "{{body}}|{{headers}}" });
  const { json } = await deliver(hook, `the secret is ${hook.secret}\0`, {
    "content-type": "application/octet-stream",
    "x-copy": hook.secret,
    "x-service-signature": hmac(hook.secret, `the secret is ${hook.secret}\0`),
  });
  const told = await saidTo(json.run_id);
  expect(told).toContain("the secret is …\uFFFD|{");
  expect(told).not.toContain(hook.secret.slice(6));
  expect(told).not.toContain("x-service-signature");
});

test("limits the rate of deliveries of a sender", async () => {
  const of = await owner();
  const hook = await webhook(of);
  await of.call("PATCH", `${of.agent}/webhooks/${hook.id}`, { enabled: false });
  const all: number[] = [];
  for (let n = 0; n < 121; n += 1) all.push((await deliver(hook)).status);
  expect(all.slice(0, 120).every((status) => status === 409)).toBe(true);
  const refused = await deliver(hook);
  expect([refused.status, refused.json.code]).toEqual([429, "rate_limited"]);
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
});

test("stores webhook secrets only encrypted, and logs none", async () => {
  const of = await owner();
  const { secret } = await webhook(of);
  expect(silentLog.level).toBe("silent");
  const rows = await host.app.db.selectFrom("agent_webhooks").selectAll().execute();
  const everything = rows
    .map((row) => `${JSON.stringify(row)}${row.secret_sealed.toString("latin1")}`)
    .join();
  expect(everything).not.toContain(secret.slice(6));
  expect(everything).not.toContain(Buffer.from(secret.slice(6), "base64").toString("latin1"));
});

test("counts a delivery that waited past midnight for the day on which its run starts", async () => {
  const of = await owner();
  const hook = await webhook(of);
  const { db } = host.app;
  const midnight = Math.ceil(clock.now().getTime() / (24 * hourMs)) * 24 * hourMs;
  clock.set(new Date(midnight - 1));
  const held = Promise.withResolvers<void>();
  const isHeld = Promise.withResolvers<void>();
  const other = db.transaction().execute(async (tx) => {
    await tx.selectFrom("agent_webhooks").select("id").where("id", "=", hook.id).forUpdate().execute();
    isHeld.resolve();
    await held.promise;
  });
  await isHeld.promise;
  const waiting = deliver(hook);
  const waits = sql`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  await expect.poll(async () => (await waits.execute(db)).rows.length, { timeout: 10_000 }).toBe(1);
  clock.set(new Date(midnight));
  held.resolve();
  await other;
  expect((await waiting).status).toBe(202);
  expect((await of.get(`${of.agent}/webhooks`)).json.items[0].runs_today).toBe(1);
});
