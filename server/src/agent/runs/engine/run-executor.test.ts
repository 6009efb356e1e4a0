import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { listStartedCalls } from "#agent/calls/calls.ts";
import { agentHost, type Json, modelConfig, type Person } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { stripExpiredTexts } from "../journal/strip-texts.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
let made = 0;

async function agent(change: object = {}, person: Person = owner): Promise<string> {
  made += 1;
  const reply = await person.post("/v1/agents", { name: `agent-${made}`, config: { ...config, ...change } });
  expect(reply.status, JSON.stringify(reply.json)).toBe(201);
  return reply.json.name as string;
}

const invoke = (name: string, body: object = {}, person: Person = owner) =>
  person.post(`/v1/agents/${name}/invoke`, { input: "Hi", ...body });

async function eventsOf(runId: string): Promise<Json[]> {
  const { frames } = await readFrames(`${host.baseUrl}/v1/agents/runs/${runId}/stream`, {
    token: owner.token,
  });
  return frames.map(({ data }) => data);
}

async function over(runId: string): Promise<Json> {
  for (;;) {
    const { json } = await owner.get(`/v1/agents/runs/${runId}`);
    if (json.finished_at !== null) return json;
    await sleep(20);
  }
}

test("completes a run with the model's answer, tokens and finish reason", async () => {
  model.script([{ text: ["Good ", "day."], usage: { prompt_tokens: 21, completion_tokens: 4 } }]);
  const name = await agent({ system: "Be polite.", model: { ...config.model, temperature: 0.5 } });
  const { status, json } = await invoke(name);
  expect([status, json]).toEqual([
    200,
    {
      run_id: expect.stringMatching(/^run_/),
      session_id: expect.stringMatching(/^ses_/),
      session_created: true,
      status: "completed",
      output: "Good day.",
      error_code: null,
      error_message: null,
      approval: null,
      finish_reason: "stop",
      output_truncated: false,
      approvals: [],
      waiting_for_sign_in: null,
      sign_in: [],
    },
  ]);
  expect(model.asked).toMatchObject([
    {
      model: "scripted",
      temperature: 0.5,
      messages: [
        { role: "system", content: "Be polite." },
        { role: "user", content: "Hi" },
      ],
    },
  ]);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    agent: name,
    version: 1,
    status: "completed",
    output: "Good day.",
    trigger: { type: "api", id: null },
    steps: 1,
    attempts: 1,
    tokens: { input: 21, output: 4, total: 25 },
    error_message: null,
  });
});

test("keeps a session's messages, and the session's version until an invoke upgrades it", async () => {
  model.script([{ text: ["one"] }, { text: ["two"] }, { text: ["three"] }]);
  const name = await agent({ system: "v1" });
  const first = (await invoke(name)).json;
  await owner.post(`/v1/agents/${name}/versions`, { config: { ...config, system: "v2" }, promote: ["prod"] });
  const second = (await invoke(name, { session_id: first.session_id, input: "And?" })).json;
  expect(second).toMatchObject({ session_created: false, session_id: first.session_id, output: "two" });
  expect(model.asked[1].messages).toEqual([
    { role: "system", content: "v1" },
    { role: "user", content: "Hi" },
    { role: "assistant", content: "one" },
    { role: "user", content: "And?" },
  ]);
  await invoke(name, { session_id: first.session_id, upgrade: true });
  expect(model.asked[2].messages[0].content).toBe("v2");
  expect((await owner.get(`/v1/agents/${name}/sessions/${first.session_id}`)).json).toMatchObject({
    version: 2,
    status: "idle",
  });
});

test("rejects the number of a version other than the session's, and accepts the number of the session's own", async () => {
  const name = await agent();
  await owner.post(`/v1/agents/${name}/versions`, { config, promote: ["prod"] });
  const { json } = await invoke(name, { qualifier: "v1" });
  const again = { session_id: json.session_id };
  const refused = await invoke(name, { ...again, qualifier: "2" });
  expect(refused).toMatchObject({ status: 409, json: { code: "session_pinned", version: 1 } });
  expect((await invoke(name, { ...again, qualifier: "1" })).status).toBe(200);
  // An alias may have moved since the session started.
  expect((await invoke(name, { ...again, qualifier: "prod" })).status).toBe(200);
  const moved = await invoke(name, { ...again, qualifier: "2", upgrade: true });
  expect((await owner.get(`/v1/agents/runs/${moved.json.run_id}`)).json.version).toBe(2);
});

test("starts a new session with the given history, and rejects history for an existing session", async () => {
  model.script([{ text: ["so"] }]);
  const name = await agent();
  const messages = [
    { role: "user", content: "Call me Ada." },
    { role: "assistant", content: "Ada, then." },
  ];
  const { json } = await invoke(name, { messages, qualifier: "latest" });
  expect(model.asked[0].messages).toEqual([...messages, { role: "user", content: "Hi" }]);
  expect(await invoke(name, { messages, session_id: json.session_id })).toMatchObject({
    status: 409,
    json: { code: "history_exists" },
  });
});

test("sends the images and texts of an input to the model as parts of one message", async () => {
  model.script([{ text: ["a cat"] }]);
  const input = [
    { type: "text", text: "What is it?" },
    { type: "image", data: "aGVsbG8=", media_type: "image/png" },
    { type: "image", url: "https://example.com/cat.png", media_type: "image/png" },
  ];
  expect((await invoke(await agent(), { input })).json.output).toBe("a cat");
  expect(model.asked[0].messages[0].content).toEqual([
    { type: "text", text: "What is it?" },
    { type: "image_url", image_url: { url: "data:image/png;base64,aGVsbG8=" } },
    { type: "image_url", image_url: { url: "https://example.com/cat.png" } },
  ]);
});

test("accepts a wait_s that is not a whole number of milliseconds", async () => {
  for (const wait_s of [0.30000000000000004, 1.2345, 299.99999]) {
    model.script([{ text: ["Good day."] }]);
    expect(await invoke(await agent(), { wait_s })).toMatchObject({
      status: expect.toSatisfy((status: number) => status === 200 || status === 202),
    });
  }
});

test("returns 202 immediately for wait_s 0, and the outcome later", async () => {
  const may = Promise.withResolvers<void>();
  model.script([{ text: ["late"], until: may.promise }]);
  const name = await agent();
  const { status, json } = await invoke(name, { wait_s: 0 });
  expect([status, json.output]).toEqual([202, null]);
  expect(["queued", "running"]).toContain(json.status);
  expect(await invoke(name, { session_id: json.session_id })).toMatchObject({
    status: 409,
    json: { code: "session_busy", run_id: json.run_id },
  });
  may.resolve();
  expect(await over(json.run_id)).toMatchObject({ status: "completed", output: "late" });
});

test("repeats the request to an overloaded model, and then calls its fallbacks in order", async () => {
  const fallbacks = [{ id: "second", credential_id: config.model.credential_id }];
  const name = await agent({ model: { ...config.model, fallbacks } });
  model.script([{ status: 429 }, { status: 503 }, { text: ["third time"] }]);
  expect((await invoke(name)).json.output).toBe("third time");
  expect(model.asked.map(({ model: id }) => id)).toEqual(["scripted", "scripted", "scripted"]);
  model.script([{ status: 529 }, { status: 529 }, { status: 529 }, { text: ["from the second"] }]);
  expect((await invoke(name)).json.output).toBe("from the second");
  expect(model.asked.map(({ model: id }) => id)).toEqual(["scripted", "scripted", "scripted", "second"]);
  // A rejected request is not retried.
  model.script([{ status: 400, error: "bad" }, { text: ["ok"] }]);
  expect((await invoke(name)).json.output).toBe("ok");
  expect(model.asked.map(({ model: id }) => id)).toEqual(["scripted", "second"]);
});

test.each([
  [{ status: 500 }, "model_error"],
  [{ status: 401, error: "who are you" }, "model_error"],
  [{ raw: "data: {nonsense\n\n" }, "model_error"],
  [{ raw: "" }, "model_error"],
  [{ text: ["never ", "whole"], cutAfter: 1 }, "model_error"],
  [{ text: ["bad words"], finish: "content_filter" }, "model_error"],
] as const)("fails the run at once when the model refuses permanently: %j", async (turn, code) => {
  model.script([turn]);
  const { status, json } = await invoke(await agent());
  expect([status, json]).toMatchObject([200, { status: "failed", error_code: code, output: null }]);
});

test("emits an event for each wait for an overloaded model, and completes the run when the model recovers", async () => {
  const busy = Array.from({ length: 7 }, () => ({ status: 429 }));
  model.script([...busy, { text: ["at last"] }]);
  const { json } = await invoke(await agent());
  expect(json).toMatchObject({ status: "completed", output: "at last" });
  expect(model.asked).toHaveLength(8);
  const waits = (await eventsOf(json.run_id)).filter(({ type }) => type === "model.waiting");
  expect(waits).toHaveLength(2);
  expect(waits[0]).toMatchObject({ step: 1, retry_at: expect.stringMatching(/Z$/) });
});

test("increases the waits for a model that sends Retry-After: 0 each time", async () => {
  model.script([{ status: 429, headers: { "retry-after": "0" } }]);
  const { json } = await invoke(await agent({ limits: { max_seconds: 2 } }));
  expect(json.status).toBe("failed");
  const waits = (await eventsOf(json.run_id)).filter(({ type }) => type === "model.waiting");
  // The first wait is 40 ms, and each next wait is twice as long.
  expect(waits.length).toBeLessThan(7);
});

test("fails a run whose model is overloaded until the run's time limit", async () => {
  model.script([{ status: 429 }]);
  const { json } = await invoke(await agent({ limits: { max_seconds: 1 } }));
  expect(json).toMatchObject({ status: "failed", output: null });
  expect(["model_rate_limited", "limit_time"]).toContain(json.error_code);
});

test("repeats requests while the model's server fails, and fails the run if the server does not recover", async () => {
  const faults = Array.from({ length: 7 }, () => ({ status: 500 }));
  model.script([...faults, { text: ["at last"] }]);
  expect((await invoke(await agent())).json).toMatchObject({ status: "completed", output: "at last" });
  expect(model.asked).toHaveLength(8);
  model.script([{ status: 502 }]);
  const { json } = await invoke(await agent());
  expect(json).toMatchObject({ status: "failed", error_code: "model_error" });
  // There are four waits between five rounds of three attempts each.
  expect(model.asked).toHaveLength(15);
});

test("fails the run at once when no server responds at the model's address", async () => {
  const { json } = await invoke(await agent(await modelConfig(owner)));
  expect(json).toMatchObject({ status: "failed", error_code: "model_error" });
  expect((await eventsOf(json.run_id)).map(({ type }) => type)).not.toContain("model.waiting");
});

test("emits step.reset for an interrupted answer, and requests the answer again", async () => {
  model.script([{ text: ["half an ans", "wer"], cutAfter: 1, delayMs: 60 }, { text: ["a whole answer"] }]);
  const { json } = await invoke(await agent());
  expect(json.output).toBe("a whole answer");
  const events = await eventsOf(json.run_id);
  expect(events.map(({ type }) => type)).toEqual([
    "run.queued",
    "run.started",
    "step.started",
    "message.started",
    "message.delta",
    "step.reset",
    "step.started",
    "message.started",
    "message.delta",
    "message.completed",
    "step.completed",
    "run.completed",
  ]);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
});

test("removes the model's key from its server's errors in the run and in the database", async () => {
  model.script([{ status: 401, error: "not with" }]);
  const { json } = await invoke(await agent());
  const run = (await owner.get(`/v1/agents/runs/${json.run_id}`)).json;
  expect(run.error_message).toContain("[key]");
  for (const table of ["agent_runs", "agent_events", "agent_messages", "agent_steps"]) {
    const { rows } = await sql`select t::text as row from ${sql.table(table)} as t`.execute(host.app.db);
    expect(JSON.stringify(rows)).not.toContain("a-key-of-the-model");
  }
});

test("cancels a run immediately, and accepts the next run in the same session", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }, { text: ["again"] }]);
  const name = await agent();
  const { json } = await invoke(name, { wait_s: 0 });
  while (model.asked.length === 0) await sleep(10);
  const cancelled = await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  expect(cancelled).toMatchObject({ status: 200, json: { status: "failed", error_code: "cancelled" } });
  expect((await owner.post(`/v1/agents/runs/${json.run_id}/cancel`)).json).toEqual(cancelled.json);
  expect((await eventsOf(json.run_id)).at(-1)).toMatchObject({ type: "run.failed", error_code: "cancelled" });
  expect((await invoke(name, { session_id: json.session_id })).json.output).toBe("again");
  never.resolve();
});

test("ends the active run and deletes the messages when a session is ended", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  const name = await agent();
  const { json } = await invoke(name, { wait_s: 0 });
  const path = `/v1/agents/${name}/sessions/${json.session_id}`;
  expect((await owner.call("DELETE", path)).status).toBe(204);
  expect((await owner.call("DELETE", path)).status).toBe(204);
  expect(await over(json.run_id)).toMatchObject({ status: "failed", error_code: "session_ended" });
  expect(await invoke(name, { session_id: json.session_id })).toMatchObject({
    status: 410,
    json: { code: "session_ended" },
  });
  expect((await owner.get(path)).json).toMatchObject({ status: "ended" });
  const { rows } = await sql`select from agent_messages where session_id = ${json.session_id}`.execute(
    host.app.db,
  );
  expect(rows).toHaveLength(0);
  never.resolve();
});

const schema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

test("validates an answer against its schema, and asks the model once to repair an invalid one", async () => {
  const name = await agent({ output: { type: "json_schema", schema } });
  model.script([{ text: ['{"town":"Bremen"}'] }, { text: ['{"city":"Bremen"}'] }]);
  const { json } = await invoke(name);
  expect(json).toMatchObject({ status: "completed", output: '{"city":"Bremen"}' });
  expect(model.asked[0].response_format).toMatchObject({ type: "json_schema", json_schema: { schema } });
  expect(model.asked[1].messages.at(-1).content).toContain("city");
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json.steps).toBe(2);
  model.script([{ text: ["Bremen"] }]);
  expect((await invoke(name)).json).toMatchObject({ status: "failed", error_code: "output_invalid" });
  expect(model.asked).toHaveLength(2);
});

test.each([
  ["limit_steps", { max_steps: 1 }, {}],
  ["limit_tokens", { max_tokens: 12 }, {}],
  ["limit_time", { max_seconds: 1 }, { until: new Promise<void>(() => {}) }],
] as const)("fails a run at its limit with %s before the next model call", async (code, limits, turn) => {
  model.script([{ text: ["no JSON"], ...turn }]);
  const name = await agent({ limits, output: { type: "json_schema", schema } });
  expect((await invoke(name)).json).toMatchObject({ status: "failed", error_code: code });
  expect(model.asked).toHaveLength(1);
});

test("keeps the text of a run that a limit ended, until the run is resumed", async () => {
  const name = await agent({ limits: { max_tokens: 40 }, memory: {} });
  const save = { name: "memory_save", arguments: '{"key":"a","value":"b"}' };
  model.script([
    { text: ["Half of it."], calls: [save] },
    { calls: [save], usage: { prompt_tokens: 20, completion_tokens: 5 } },
    { text: ["All of it."] },
  ]);
  const { json } = await invoke(name);
  expect(json).toMatchObject({
    status: "failed",
    error_code: "limit_tokens",
    error_message: expect.stringContaining("counts its whole input again"),
    output: "Half of it.",
    output_truncated: true,
  });
  await owner.post(`/v1/agents/runs/${json.run_id}/resume`);
  await host.runs.waitForOutcome(json.run_id, 20_000);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    status: "completed",
    output: "All of it.",
    output_truncated: false,
  });
});

test("sends a long conversation to the model only from its last question on, and stores all messages", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent({
    context: { compact_at_tokens: 1000, keep_last_messages: 2, compaction: "drop" },
  });
  const messages = Array.from({ length: 10 }, (_, n) => ({
    role: n % 2 === 0 ? "user" : "assistant",
    content: `${n} ${"x".repeat(800)}`,
  }));
  const { json } = await invoke(name, { messages });
  expect(model.asked[0].messages).toEqual([{ role: "user", content: "Hi" }]);
  expect(await eventsOf(json.run_id)).toContainEqual(
    expect.objectContaining({ type: "context.compacted", left_out: 10 }),
  );
});

test("rejects input in a full session, and fails a run whose answer does not fit", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent();
  const { session_id } = (await invoke(name)).json;
  const sizes = async () =>
    (
      await sql<{
        bytes: number;
        kept: number;
      }>`select bytes, (select sum(octet_length(message::text))::bigint
        from agent_messages where session_id = id) as kept from agent_sessions where id = ${session_id}`.execute(
        host.app.db,
      )
    ).rows[0]!;
  const { bytes, kept } = await sizes();
  expect(bytes).toBe(kept);
  const leave = (left: number) =>
    sql`update agent_sessions set bytes = ${32 * 1024 ** 2 - left} where id = ${session_id}`.execute(
      host.app.db,
    );
  // The remaining space suffices for the input, but not for the answer.
  await leave(80);
  const failed = (await invoke(name, { session_id })).json;
  expect(failed).toMatchObject({ status: "failed", error_code: "limit_tokens" });
  expect((await owner.get(`/v1/agents/runs/${failed.run_id}`)).json.error_message).toContain("32 MiB");
  await leave(20);
  expect(await invoke(name, { session_id })).toMatchObject({ status: 409, json: { code: "session_full" } });
});

test("reads the newest messages of a long session up to the memory limit, starting at a user's message", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent();
  const { session_id } = (await invoke(name, { input: "One" })).json;
  await invoke(name, { input: "Two", session_id });
  await sql`update agent_messages set bytes = ${9 * 1024 ** 2}
    where session_id = ${session_id} and seq = 2`.execute(host.app.db);
  const { json } = await invoke(name, { input: "Three", session_id });
  expect(model.asked.at(-1).messages.map(({ content }: Json) => content)).toEqual(["Two", "ok", "Three"]);
  expect(await eventsOf(json.run_id)).toContainEqual(
    expect.objectContaining({ type: "context.compacted", left_out: 2 }),
  );
});

test("rejects another end user in a session, and rejects invalid end user ids", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent();
  const { json } = await invoke(name, { end_user_id: "ada@example.com" });
  const again = { session_id: json.session_id };
  expect((await invoke(name, again)).status).toBe(200);
  expect(await invoke(name, { ...again, end_user_id: "bob" })).toMatchObject({
    status: 400,
    json: { pointer: "/end_user_id" },
  });
  for (const end_user_id of ["-", "", "a b"])
    expect(await invoke(name, { end_user_id })).toMatchObject({ status: 400 });
});

test("rejects an invoke that cannot run, with an error code for each cause", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent();
  expect((await invoke("nobody")).json.code).toBe("agent_not_found");
  expect((await invoke(name, { qualifier: "staging" })).json.code).toBe("version_not_found");
  expect((await invoke(name, { session_id: "ses_no" })).json.code).toBe("session_not_found");
  expect((await invoke(name, { input: "" })).json.pointer).toBe("/input");
  await owner.call("PATCH", `/v1/agents/${name}`, { paused: true });
  expect(await invoke(name)).toMatchObject({ status: 403, json: { code: "agent_paused" } });
  await owner.call("PATCH", `/v1/agents/${name}`, { paused: false });
  await owner.post("/v1/agents/pause-all", { paused: true });
  expect(await invoke(name)).toMatchObject({ status: 403, json: { code: "agent_paused" } });
  await owner.post("/v1/agents/pause-all", { paused: false });
  expect((await invoke(name)).status).toBe(200);
});

test("rejects an invoke of a suspended account", async () => {
  const person = await host.person();
  const own = await modelConfig(person, model.url);
  await person.post("/v1/agents", { name: "mine", config: own });
  const { db } = host.app;
  await db
    .updateTable("workspaces")
    .set({ suspended_at: new Date() })
    .where("id", "=", person.workspaceId)
    .execute();
  clearActorCache(host.app);
  expect(await invoke("mine", {}, person)).toMatchObject({
    status: 402,
    json: { code: "account_suspended" },
  });
});

test("rejects an invoke whose model credential was deleted", async () => {
  const person = await host.person();
  const own = await modelConfig(person, model.url);
  await person.post("/v1/agents", { name: "mine", config: own });
  await person.call("DELETE", `/v1/model-credentials/${own.model.credential_id}`);
  expect(await invoke("mine", {}, person)).toMatchObject({
    status: 424,
    json: { code: "credential_missing" },
  });
});

test("enforces the plan's limits for sessions and runs in flight when invokes are concurrent", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  const person = await host.person({ plan: "starter" });
  await person.post("/v1/agents", { name: "mine", config: await modelConfig(person, model.url) });
  const replies = await Promise.all([1, 2, 3, 4].map(() => invoke("mine", { wait_s: 0 }, person)));
  const codes = replies.map(({ status, json }) => `${status} ${json.code ?? ""}`).toSorted();
  expect(codes).toEqual(["202 ", "202 ", "409 session_cap_reached", "409 session_cap_reached"]);
  const first = replies.find(({ status }) => status === 202)!.json;
  await person.call("DELETE", `/v1/agents/mine/sessions/${first.session_id}`);
  expect((await invoke("mine", { wait_s: 0 }, person)).status).toBe(202);
  // This plan allows as many sessions as runs. After all sessions have ended, only the limit of runs rejects the
  // invoke.
  await host.app.db
    .updateTable("agent_sessions")
    .set({ ended_at: new Date() })
    .where("workspace_id", "=", person.workspaceId)
    .execute();
  const refused = await invoke("mine", { wait_s: 0 }, person);
  expect(refused).toMatchObject({ status: 429, json: { code: "too_many_runs" } });
  expect(refused.headers.get("retry-after")).toBe("2");
  never.resolve();
});

test("starts one run per idempotency key, and returns that run's current state to later requests", async () => {
  const may = Promise.withResolvers<void>();
  model.script([{ text: ["once"], until: may.promise }]);
  const name = await agent();
  // Runs of earlier tests may still call the model.
  const [key, input] = [randomUUID(), `Hi from ${name}`];
  const ask = () =>
    owner.call("POST", `/v1/agents/${name}/invoke`, { input, wait_s: 0 }, { "idempotency-key": key });
  const first = await ask();
  expect(first.status).toBe(202);
  may.resolve();
  await over(first.json.run_id);
  const again = await ask();
  expect([again.status, again.json.run_id, again.json.output]).toEqual([200, first.json.run_id, "once"]);
  expect(again.headers.get("idempotent-replayed")).toBe("true");
  expect(model.asked.filter((one) => JSON.stringify(one).includes(input))).toHaveLength(1);
  const { rows } = await sql`select body::text as body from idempotency_keys where key = ${key}`.execute(
    host.app.db,
  );
  expect(JSON.stringify(rows)).not.toContain("once");
});

test("returns the existing run for an idempotency key after a crash, and starts no second run", async () => {
  const may = Promise.withResolvers<void>();
  model.script([{ text: ["once"], until: may.promise }]);
  const name = await agent();
  const ask = () =>
    owner.call("POST", `/v1/agents/${name}/invoke`, { input: "Hi", wait_s: 60 }, { "idempotency-key": "k2" });
  const first = ask();
  const runs = async () => (await owner.get(`/v1/agents/runs?agent=${name}`)).json.items;
  await expect.poll(async () => (await runs()).length).toBe(1);
  expect((await ask()).json.code).toBe("idempotency_in_progress");
  // Sets the state after a kill of the server: the lease in the row has expired.
  await host.app.db
    .updateTable("idempotency_keys")
    .set({ process_id: crypto.randomUUID(), expires_at: new Date(Date.now() - 1) })
    .where("key", "=", "k2")
    .execute();
  const again = await ask();
  expect([again.status, again.json.run_id]).toEqual([202, (await runs())[0].run_id]);
  expect(again.headers.get("idempotent-replayed")).toBe("true");
  may.resolve();
  expect((await first).json).toMatchObject({ run_id: again.json.run_id, status: "completed" });
  expect(await runs()).toHaveLength(1);
});

test("erases the texts of a run and its events after an hour, and keeps sequence numbers", async () => {
  model.script([{ text: ["a secret plan"], reasoning: ["hmm"] }]);
  const { json } = await invoke(await agent());
  const later = new Date(Date.now() + 3_601_000);
  await stripExpiredTexts(host.app, later);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json.output).toBeNull();
  const events = await eventsOf(json.run_id);
  expect(JSON.stringify(events)).not.toMatch(/secret plan|hmm/);
  expect(events.find(({ type }) => type === "message.delta")).toMatchObject({ expired: true });
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
});

test("hides expired texts in the stream even before the sweep erases them", async () => {
  model.script([{ text: ["a secret plan"], reasoning: ["hmm"] }]);
  const { json } = await invoke(await agent());
  const seqs = (await eventsOf(json.run_id)).map(({ seq }) => seq);
  await sql`update agent_runs set output_expires_at = now() where id = ${json.run_id}`.execute(host.app.db);
  const events = await eventsOf(json.run_id);
  expect(JSON.stringify(events)).not.toMatch(/secret plan|hmm/);
  expect(events.find(({ type }) => type === "message.delta")).toMatchObject({ expired: true });
  expect(events.find(({ type }) => type === "step.completed")).not.toHaveProperty("expired");
  expect(events.map(({ seq }) => seq)).toEqual(seqs);
});

test("omits long outputs from a list of runs", async () => {
  const long = "x".repeat(64 * 1024 + 1);
  model.script([{ text: [long] }]);
  const name = await agent();
  const { json } = await invoke(name);
  expect(json.output).toBe(long);
  await sql`insert into agent_tool_calls (id, run_id, step, position, tool, arguments, status, result)
    values ('call_long', ${json.run_id}, 1, 0, 'look', '{"a": 1}', 'completed', 'long')`.execute(host.app.db);
  const [listed] = (await owner.get(`/v1/agents/runs?agent=${name}`)).json.items;
  expect(listed).toMatchObject({ output: null, status: "completed", output_expires_at: expect.any(String) });
  expect(listed.tools_called).toMatchObject([{ call_id: "call_long", tool: "look" }]);
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toEqual({ ...listed, output: long });
  const [call] = (await listStartedCalls(host.app.db, [json.run_id])).get(json.run_id)!;
  expect(Object.keys(call!)).not.toContain("result");
  expect(Object.keys(call!)).not.toContain("arguments");
});

test("stores valid Unicode, and joins a surrogate pair that arrives in two deltas", async () => {
  model.script([{ text: ["a\0 \ud83d", "\ude00", " \udc00 \ud83d"], reasoning: ["\ud83d"] }]);
  const { json } = await invoke(await agent());
  const events = await eventsOf(json.run_id);
  const deltas = events.filter(({ type }) => type === "message.delta").map(({ delta }) => delta);
  expect(deltas.join("")).toBe("a\uFFFD 😀 \uFFFD ");
  expect(json.output).toBe("a\uFFFD 😀 \uFFFD ");
});

test("erases expired texts of all other runs when the events of one run cannot be parsed", async () => {
  model.script([{ text: ["a secret plan"] }]);
  const name = await agent();
  const broken = (await invoke(name)).json.run_id;
  await sql`update agent_events set data = '{"delta": "\\u0000 secret"}'
    where run_id = ${broken} and type = 'message.delta'`.execute(host.app.db);
  const other = (await invoke(name)).json.run_id;
  await stripExpiredTexts(host.app, new Date(Date.now() + 3_601_000));
  for (const id of [broken, other]) {
    expect((await owner.get(`/v1/agents/runs/${id}`)).json.output).toBeNull();
    const events = await eventsOf(id);
    expect(JSON.stringify(events)).not.toContain("secret");
    expect(events.find(({ type }) => type === "message.delta")).toMatchObject({ expired: true });
  }
});

test("lists runs by agent, session and status, and only to their owner", async () => {
  model.script([{ text: ["ok"] }]);
  const name = await agent();
  const { json } = await invoke(name);
  const ids = async (query: string) =>
    (await owner.get(`/v1/agents/runs?${query}`)).json.items.map(({ run_id }: Json) => run_id);
  expect(await ids(`agent=${name}`)).toEqual([json.run_id]);
  expect(await ids(`session_id=${json.session_id}&status=completed`)).toEqual([json.run_id]);
  expect(await ids(`agent=${name}&status=failed`)).toEqual([]);
  const other = await host.person();
  expect((await other.get("/v1/agents/runs")).json.items).toEqual([]);
  for (const [method, path] of [
    ["GET", `/v1/agents/runs/${json.run_id}`],
    ["GET", `/v1/agents/runs/${json.run_id}/stream`],
    ["POST", `/v1/agents/runs/${json.run_id}/cancel`],
  ] as const)
    expect((await other.call(method, path)).json, path).toMatchObject({ code: "run_not_found" });
});
