/** Deliveries with an end user, a session key and a version. */
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { testClock } from "../../../test/harness.ts";
import { Scheduler } from "../schedules/scheduler.ts";

const clock = testClock(new Date());
const model = await startModelServer();
const host = await agentHost({ clock });
const stranger = await host.person();
let made = 0;

type Owner = Person & { agent: string; config: Json };

async function owner(): Promise<Owner> {
  const person = await host.person();
  const name = `agent-${(made += 1)}`;
  const config = await modelConfig(person, model.url);
  await person.post("/v1/agents", { name, config });
  return { ...person, agent: `/v1/agents/${name}`, config };
}

async function webhook(of: Owner, body: object): Promise<Json> {
  const { status, json } = await of.post(`${of.agent}/webhooks`, {
    name: "chat",
    input_template: "{{body.text}}",
    ...body,
  });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function deliver({ id, secret }: Json, body: object, headers: Record<string, string> = {}) {
  const response = await fetch(`${host.baseUrl}/v1/hooks/agents/${id}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${secret}`, ...headers },
    body: JSON.stringify(body),
  });
  return { status: response.status, json: (await response.json()) as Json, headers: response.headers };
}

async function deliverAccepted(hook: Json, body: object): Promise<Json> {
  const { status, json } = await deliver(hook, body);
  expect([status, json]).toMatchObject([202, {}]);
  return json;
}

const runOf = async (of: Owner, id: string): Promise<Json> => (await of.get(`/v1/agents/runs/${id}`)).json;

async function waitForRun(of: Owner, id: string): Promise<Json> {
  await host.runs.waitForOutcome(id, 20_000);
  return runOf(of, id);
}

const saidIn = async (of: Owner, session: string): Promise<string[]> => {
  const { json } = await of.get(`${of.agent}/sessions/${session}/messages`);
  return json.items.map(({ content }: Json) => content.map(({ text }: Json) => text).join(""));
};

/** Scripts a model that responds when the test calls `letGo`. */
function blockedModel(): { letGo: () => void } {
  const { promise, resolve } = Promise.withResolvers<void>();
  model.script([{ text: ["first"], until: promise }, { text: ["then"] }]);
  return { letGo: resolve };
}

test("returns a webhook's end user, session and version by GET and PATCH, and resets each by null", async () => {
  const of = await owner();
  const { secret: _, ...json } = await webhook(of, {
    end_user_id: "{{body.user.id}}",
    session: "{{body.thread}}",
    qualifier: "latest",
  });
  expect(json).toMatchObject({
    end_user_id: "{{body.user.id}}",
    session: "{{body.thread}}",
    qualifier: "latest",
  });
  const path = `${of.agent}/webhooks/${json.id}`;
  const [shown] = (await of.get(`${of.agent}/webhooks`)).json.items;
  expect((await of.call("PATCH", path, shown)).json).toEqual(shown);
  const reset = await of.call("PATCH", path, { end_user_id: null, session: null, qualifier: null });
  expect(reset.json).toEqual({ ...json, end_user_id: null, session: null, qualifier: "prod" });
  expect((await stranger.call("PATCH", path, { session: "{{body.x}}" })).status).toBe(404);
  for (const [body, pointer] of [
    [{ end_user_id: "two words" }, "/end_user_id"],
    [{ end_user_id: "-" }, "/end_user_id"],
    [{ end_user_id: "{{body.user" }, "/end_user_id"],
    [{ session: "{{secrets.key}}" }, "/session"],
    [{ session: "x".repeat(1025) }, "/session"],
    [{ qualifier: "beta" }, "/qualifier"],
    [{ qualifier: "7" }, "/qualifier"],
  ] as const)
    expect((await of.call("PATCH", path, body)).json, JSON.stringify(body)).toMatchObject({
      code: "invalid_request",
      pointer,
    });
});

test("shares a session between deliveries with the same key, and not with other or missing keys", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  model.script([{ text: ["Yes."] }]);
  const first = await deliverAccepted(hook, { text: "one", thread: 7 });
  await waitForRun(of, first.run_id);
  const second = await deliverAccepted(hook, { text: "two", thread: 7 });
  await waitForRun(of, second.run_id);
  expect(second.session_id).toBe(first.session_id);
  expect(await saidIn(of, first.session_id)).toEqual(["one", "Yes.", "two", "Yes."]);
  const others = [{ thread: 8 }, {}, {}, { thread: null }, { thread: "" }];
  const sessions = new Set([first.session_id]);
  for (const body of others) sessions.add((await deliverAccepted(hook, { text: "x", ...body })).session_id);
  expect(sessions.size).toBe(1 + others.length);
  const other = await webhook(of, { session: "{{body.thread}}" });
  expect((await deliverAccepted(other, { text: "x", thread: 7 })).session_id).not.toBe(first.session_id);
  // After its session has ended, a key starts a new session.
  await of.call("DELETE", `${of.agent}/sessions/${first.session_id}`);
  expect((await deliverAccepted(hook, { text: "x", thread: 7 })).session_id).not.toBe(first.session_id);
});

test("creates one session for concurrent deliveries with a new session key", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  model.script([{ text: ["Yes."] }]);
  const all = await Promise.all(
    Array.from({ length: 8 }, (_, n) => deliverAccepted(hook, { text: `m${n}`, thread: "t" })),
  );
  expect(new Set(all.map(({ session_id }) => session_id)).size).toBe(1);
  for (const { run_id } of all)
    await expect.poll(() => statusOf(of, run_id), { timeout: 20_000 }).toBe("completed");
  const said = await saidIn(of, all[0].session_id);
  expect(said.filter((text) => text !== "Yes.").toSorted()).toEqual(all.map((_, n) => `m${n}`));
  expect(said.filter((_, place) => place % 2 === 1)).toEqual(all.map(() => "Yes."));
});

const statusOf = async (of: Owner, id: string): Promise<string> => (await runOf(of, id)).status;

test("runs deliveries to a busy session in the order of their arrival", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  const { letGo } = blockedModel();
  const first = await deliverAccepted(hook, { text: "one", thread: 1 });
  const second = await deliverAccepted(hook, { text: "two", thread: 1 });
  const third = await deliverAccepted(hook, { text: "three", thread: 1 });
  expect([second.session_id, third.session_id]).toEqual([first.session_id, first.session_id]);
  // The clocks of several servers differ, so only the order of arrival counts.
  await host.app.db
    .updateTable("agent_runs")
    .set({ created_at: new Date(clock.now().getTime() - 1_000) })
    .where("id", "=", third.run_id)
    .execute();
  expect(await runOf(of, second.run_id)).toMatchObject({
    status: "queued",
    waiting_for_session: true,
    attempts: 0,
  });
  const invoked = await of.post(`${of.agent}/invoke`, { input: "x", session_id: first.session_id });
  expect(invoked.json).toMatchObject({ code: "session_busy", run_id: first.run_id });
  letGo();
  for (const { run_id } of [first, second, third])
    expect(await waitForRun(of, run_id)).toMatchObject({ status: "completed", waiting_for_session: false });
  expect(await saidIn(of, first.session_id)).toEqual(["one", "first", "two", "then", "three", "then"]);
  expect(await host.app.db.selectFrom("agent_turns").selectAll().execute()).toEqual([]);
});

test("starts a waiting run in another process when the process of the previous run is dead", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  const { letGo } = blockedModel();
  const first = await deliverAccepted(hook, { text: "one", thread: 1 });
  const second = await deliverAccepted(hook, { text: "two", thread: 1 });
  // Imitates a server that was killed after it committed the end of the first run.
  await of.post(`/v1/agents/runs/${first.run_id}/cancel`);
  letGo();
  const other = new RunExecutor(host.app, { pauseMs: 5 });
  await other.start();
  try {
    await expect.poll(() => statusOf(of, second.run_id), { timeout: 20_000 }).toBe("completed");
  } finally {
    await other.stop();
  }
});

test("cancels a waiting run on request, and fails it when its session ends or after a day", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  const { letGo } = blockedModel();
  try {
    await deliverAccepted(hook, { text: "one", thread: 1 });
    const [cancelled, late, ended] = [
      await deliverAccepted(hook, { text: "two", thread: 1 }),
      await deliverAccepted(hook, { text: "three", thread: 1 }),
      await deliverAccepted(hook, { text: "four", thread: 1 }),
    ];
    await of.post(`/v1/agents/runs/${cancelled.run_id}/cancel`);
    expect(await runOf(of, cancelled.run_id)).toMatchObject({ status: "failed", error_code: "cancelled" });
    expect((await of.post(`/v1/agents/runs/${cancelled.run_id}/resume`)).json.code).toBe("run_not_resumable");
    await host.app.db
      .updateTable("agent_turns")
      .set({ expires_at: new Date(clock.now().getTime() - 1) })
      .where("run_id", "=", late.run_id)
      .execute();
    await expect.poll(() => statusOf(of, late.run_id), { timeout: 20_000 }).toBe("failed");
    expect(await runOf(of, late.run_id)).toMatchObject({
      error_code: "limit_time",
      error_message: expect.stringMatching(/for its turn in the session\. Send the delivery again\.$/),
    });
    await of.call("DELETE", `${of.agent}/sessions/${ended.session_id}`);
    expect(await runOf(of, ended.run_id)).toMatchObject({ status: "failed", error_code: "session_ended" });
    expect(await host.app.db.selectFrom("agent_turns").selectAll().execute()).toEqual([]);
  } finally {
    letGo();
  }
});

test("limits the waiting runs of a session, and accepts a refused delivery when it is sent again", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}" });
  const { letGo } = blockedModel();
  try {
    const { session_id } = await deliverAccepted(hook, { text: "one", thread: 1 });
    for (let n = 0; n < 100; n += 1) await deliverAccepted(hook, { text: `n${n}`, thread: 1 });
    const { status, json, headers } = await deliver(hook, { text: "more", thread: 1 }, { "webhook-id": "d" });
    expect([status, json, headers.get("retry-after")]).toMatchObject([
      429,
      { code: "session_queue_full", allowed: 100 },
      "30",
    ]);
    // Waiting runs do not count towards the plan's limit of runs in flight.
    expect((await deliver(hook, { text: "x", thread: 2 })).status).toBe(202);
    await of.call("DELETE", `${of.agent}/sessions/${session_id}`);
    expect((await deliver(hook, { text: "more", thread: 1 }, { "webhook-id": "d" })).status).toBe(202);
  } finally {
    letGo();
  }
});

test("runs a delivery for the end user that the template selects, with that user's session and memory", async () => {
  const of = await owner();
  const hook = await webhook(of, { session: "{{body.thread}}", end_user_id: "{{body.user.id}}" });
  model.script([{ text: ["Yes."] }]);
  const ada = await deliverAccepted(hook, { text: "a", thread: 1, user: { id: "ada" } });
  const bob = await deliverAccepted(hook, { text: "b", thread: 1, user: { id: "bob" } });
  expect(ada.session_id).not.toBe(bob.session_id);
  expect(await waitForRun(of, ada.run_id)).toMatchObject({ end_user_id: "ada" });
  expect(await waitForRun(of, bob.run_id)).toMatchObject({ end_user_id: "bob" });
  expect((await deliverAccepted(hook, { text: "a", thread: 1, user: { id: "ada" } })).session_id).toBe(
    ada.session_id,
  );
  for (const user of [
    undefined,
    {},
    { id: "" },
    { id: "-" },
    { id: "two words" },
    { id: { x: 1 } },
    { id: "x".repeat(2000) },
  ])
    expect(await deliver(hook, { text: "x", user }), JSON.stringify(user)).toMatchObject({
      status: 400,
      json: { code: "end_user_invalid" },
    });
  expect(await deliver(hook, { text: "x", thread: "t".repeat(2000), user: { id: "ada" } })).toMatchObject({
    status: 400,
    json: { code: "session_key_too_long" },
  });
});

test("erases the waiting runs, schedules and webhooks of one end user only", async () => {
  const of = await owner();
  const byBody = await webhook(of, { session: "{{body.thread}}", end_user_id: "{{body.user}}" });
  const fixed = await webhook(of, { end_user_id: "ada" });
  const bobs = await webhook(of, { end_user_id: "bob" });
  const schedule = { schedule: "daily", message: "Look.", end_user_id: "ada" };
  await of.post(`${of.agent}/schedules`, schedule);
  await of.post(`${of.agent}/schedules`, { ...schedule, end_user_id: "bob" });
  const { letGo } = blockedModel();
  try {
    const first = await deliverAccepted(byBody, { text: "ada-said", thread: 1, user: "ada" });
    const waiting = await deliverAccepted(byBody, { text: "ada-waits", thread: 1, user: "ada" });
    const erased = await of.call("DELETE", `${of.agent}/end-users/ada`);
    expect(erased).toMatchObject({ status: 200, json: { sessions: 1, triggers: 2 } });
    for (const { run_id } of [first, waiting])
      expect((await of.get(`/v1/agents/runs/${run_id}`)).status).toBe(404);
  } finally {
    letGo();
  }
  expect(await host.app.db.selectFrom("agent_turns").selectAll().execute()).toEqual([]);
  const left = (await of.get(`${of.agent}/webhooks`)).json.items.map(({ id }: Json) => id);
  expect(new Set(left)).toEqual(new Set([byBody.id, bobs.id]));
  expect((await deliver(fixed, { text: "x" })).json.code).toBe("webhook_not_found");
  const { items } = (await of.get(`${of.agent}/schedules`)).json;
  expect(items.map(({ end_user_id }: Json) => end_user_id)).toEqual(["bob"]);
});

test("runs the version of the webhook's qualifier; only a version number changes an existing session's version", async () => {
  const of = await owner();
  await of.post(`${of.agent}/versions`, { config: of.config });
  await of.call("PUT", `${of.agent}/aliases/beta`, { version: 1 });
  model.script([{ text: ["Yes."] }]);
  const hook = await webhook(of, { session: "{{body.thread}}", qualifier: "beta" });
  const path = `${of.agent}/webhooks/${hook.id}`;
  const versionOf = async (thread: number) => {
    const { run_id } = await deliverAccepted(hook, { text: "x", thread });
    return (await waitForRun(of, run_id)).version as number;
  };
  expect(await versionOf(1)).toBe(1);
  expect((await of.call("DELETE", `${of.agent}/aliases/beta`)).json).toMatchObject({
    code: "alias_in_use",
    webhooks: 1,
  });
  await of.call("PUT", `${of.agent}/aliases/beta`, { version: 2 });
  expect([await versionOf(1), await versionOf(2)]).toEqual([1, 2]);
  await of.call("PATCH", path, { qualifier: "v2" });
  expect(await versionOf(1)).toBe(2);
  await of.post(`${of.agent}/versions`, { config: of.config });
  await of.call("PUT", `${of.agent}/aliases/beta`, { version: 3 });
  expect((await of.call("DELETE", `${of.agent}/versions/2`)).json.code).toBe("version_in_use");
});

test("refuses a webhook version with scopes that the token does not have", async () => {
  const of = await owner();
  await of.post(`${of.agent}/versions`, {
    config: { ...of.config, platform: { scopes: ["platform:read"] } },
  });
  const writing = await of.tokenWith(["agents:read", "agents:write"]);
  const as = { authorization: `Bearer ${writing}` };
  const hook = await of.call("POST", `${of.agent}/webhooks`, { name: "x" }, as);
  expect(hook.status).toBe(201);
  for (const change of [{ qualifier: "latest" }, { qualifier: "2", enabled: false }]) {
    const { json } = await of.call("PATCH", `${of.agent}/webhooks/${hook.json.id}`, change, as);
    expect(json).toMatchObject({ code: "missing_scope", scope: "platform:read", pointer: "/qualifier" });
  }
});

test("runs a schedule in its named session, queues one time while the session is busy, and skips the next", async () => {
  const of = await owner();
  const scheduler = new Scheduler(host.app, host.runs);
  const { json } = await of.post(`${of.agent}/schedules`, {
    schedule: "every 1m",
    message: "Look.",
    session: "news",
    end_user_id: "ada",
    qualifier: "v1",
  });
  expect(json).toMatchObject({ session: "news", end_user_id: "ada", qualifier: "v1" });
  const path = `${of.agent}/schedules/${json.id}`;
  const [shown] = (await of.get(`${of.agent}/schedules`)).json.items;
  expect((await of.call("PATCH", path, shown)).json).toEqual(shown);
  expect((await of.call("PATCH", path, { qualifier: "beta" })).json.pointer).toBe("/qualifier");
  const { letGo } = blockedModel();
  for (let n = 0; n < 3; n += 1) {
    clock.advance(60_000);
    await scheduler.sweep();
  }
  expect((await of.get(`${of.agent}/schedules`)).json.items[0]).toMatchObject({
    last_status: "skipped",
    last_error: "session_queue_full",
    consecutive_failures: 0,
  });
  letGo();
  const runs: Json[] = (await of.get("/v1/agents/runs")).json.items;
  expect(runs).toHaveLength(2);
  for (const { run_id } of runs) expect((await waitForRun(of, run_id)).status).toBe("completed");
  expect(new Set(runs.map(({ session_id }) => session_id)).size).toBe(1);
  expect(runs.map(({ end_user_id }) => end_user_id)).toEqual(["ada", "ada"]);
  const reset = await of.call("PATCH", path, { session: null, end_user_id: null, qualifier: null });
  expect(reset.json).toMatchObject({ session: null, end_user_id: null, qualifier: "prod" });
  await scheduler.sweep();
  clock.advance(60_000);
  await scheduler.sweep();
  const [newest] = (await of.get("/v1/agents/runs")).json.items;
  expect(newest.session_id).not.toBe(runs[0].session_id);
});

test("keeps a version that a run uses, after a later delivery changed the session's version", async () => {
  const of = await owner();
  for (let n = 0; n < 2; n += 1) await of.post(`${of.agent}/versions`, { config: of.config });
  await of.call("PUT", `${of.agent}/aliases/prod`, { version: 3 });
  const hook = await webhook(of, { session: "one", qualifier: "1" });
  const { letGo } = blockedModel();
  const first = await deliverAccepted(hook, { text: "one" });
  await of.call("PATCH", `${of.agent}/webhooks/${hook.id}`, { qualifier: "2" });
  const second = await deliverAccepted(hook, { text: "two" });
  const path = `${of.agent}/versions/1`;
  expect((await of.call("DELETE", path)).json).toMatchObject({ code: "version_in_use", live_sessions: 1 });
  letGo();
  for (const { run_id } of [first, second]) expect((await waitForRun(of, run_id)).status).toBe("completed");
  expect((await of.call("DELETE", path)).status).toBe(204);
});
