/** Resumes failed runs from their last complete step. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { stripTexts } from "../store.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const stranger = await host.person();
const plain = await modelConfig(owner, model.url);
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [
    { name: "sell", description: "", method: "POST", path: "/sell", parameters: { type: "object" } },
  ],
});
const selling = { ...plain, toolsets: [{ toolset_id: toolset.id }] };
await owner.post("/v1/agents", { name: "plain", config: plain });
await owner.post("/v1/agents", { name: "selling", config: selling });
await owner.post("/v1/agents", {
  name: "asking",
  config: { ...plain, toolsets: [{ toolset_id: toolset.id, policy: "ask" }] },
});

const call = { calls: [{ name: "shop__sell", arguments: '{"id":"7"}' }] };
const refusal = { status: 400, error: "no such model" };

async function outcomeOf(id: string): Promise<Json> {
  await host.runs.waitForOutcome(id, 20_000);
  return (await owner.get(`/v1/agents/runs/${id}`)).json;
}

async function resume(id: string): Promise<Json> {
  const { status, json } = await owner.post(`/v1/agents/runs/${id}/resume`);
  expect(status, JSON.stringify(json)).toBe(200);
  return outcomeOf(id);
}

const eventsOf = async (id: string) =>
  (await readFrames(`${host.baseUrl}/v1/agents/runs/${id}/stream`, { token: owner.token })).frames.map(
    ({ data }) => data,
  );

test("resumes a failed run after its last tool call without repeating the call", async () => {
  shop.asked = [];
  model.script([call, refusal]);
  const { json } = await owner.post("/v1/agents/selling/invoke", { input: "Sell it." });
  expect(json).toMatchObject({ status: "failed", error_code: "model_error" });
  // The error message contains the cause and the cure.
  expect(json.error_message).toMatch(/no such model.*\/resume/s);
  model.script([{ text: ["Sold."] }]);
  expect(await resume(json.run_id)).toMatchObject({
    status: "completed",
    output: "Sold.",
    error_code: null,
    error_message: null,
    resumes: 1,
    steps: 2,
    tools_called: [{ status: "completed" }],
  });
  expect(shop.asked).toHaveLength(1);
  const events = await eventsOf(json.run_id);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
  const types = events.map(({ type }) => type);
  expect(types.slice(types.indexOf("run.failed"))).toEqual([
    "run.failed",
    "run.resumed",
    "run.started",
    "step.started",
    "message.started",
    "message.delta",
    "message.completed",
    "step.completed",
    "run.completed",
  ]);
  // The session continues with the run's output.
  const { session_id } = json;
  expect((await owner.post("/v1/agents/selling/invoke", { input: "And?", session_id })).status).toBe(200);
});

test("streams a resumed run to a UI client as one message, without the earlier failure", async () => {
  model.script([refusal]);
  const { json } = await owner.post("/v1/agents/plain/invoke", { input: "Hi" });
  model.script([{ text: ["Hello."] }]);
  await resume(json.run_id);
  const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream?format=ui`;
  const chunks = (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
  const types = chunks.map(({ type }) => type);
  expect(types).not.toContain("error");
  expect(types.filter((type) => type === "finish")).toHaveLength(1);
});

test("applies the limits of the version anew to a resumed run", async () => {
  const config = { ...selling, limits: { max_steps: 1 } };
  await owner.post("/v1/agents", { name: "short", config });
  model.script([call, { text: ["Sold."] }]);
  const { json } = await owner.post("/v1/agents/short/invoke", { input: "Sell it." });
  expect(json).toMatchObject({ status: "failed", error_code: "limit_steps" });
  expect(await resume(json.run_id)).toMatchObject({ status: "completed", output: "Sold." });
});

test("requests approval again for a call whose approval was undecided when the run was cancelled", async () => {
  shop.asked = [];
  model.script([call, { text: ["Done."] }]);
  const { json } = await owner.post("/v1/agents/asking/invoke", { input: "Sell it." });
  expect(json.status).toBe("pending_approval");
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  const run = await resume(json.run_id);
  expect(run).toMatchObject({ status: "pending_approval", approval: { tool: "shop__sell" } });
  expect(run.approval.request_id).not.toBe(json.approval.request_id);
  expect(shop.asked).toEqual([]);
  await owner.post(`/v1/agents/runs/${json.run_id}/approvals/${run.approval.request_id}`, {
    decision: "approve",
  });
  expect(await outcomeOf(json.run_id)).toMatchObject({ status: "completed" });
  expect(shop.asked).toHaveLength(1);
});

test("reports an unknown outcome to the model for a call that a cancellation interrupted", async () => {
  shop.asked = [];
  shop.answer = () => {};
  model.script([call, { text: ["Done."] }]);
  const { json } = await owner.post("/v1/agents/selling/invoke", { input: "Sell it.", wait_s: 0 });
  await expect.poll(() => shop.asked.length, { timeout: 20_000 }).toBe(1);
  await owner.post(`/v1/agents/runs/${json.run_id}/cancel`);
  shop.answer = undefined;
  expect(await resume(json.run_id)).toMatchObject({
    status: "completed",
    tools_called: [{ status: "unknown" }],
  });
  expect(shop.asked).toHaveLength(1);
});

test("rejects a resume of a run that is not resumable, with the reason", async () => {
  model.script([{ text: ["Hi."] }]);
  const done = (await owner.post("/v1/agents/plain/invoke", { input: "Hi" })).json;
  const tryResume = async (id: string) => (await owner.post(`/v1/agents/runs/${id}/resume`)).json;
  expect(await tryResume(done.run_id)).toMatchObject({ code: "run_not_resumable" });

  model.script([refusal]);
  const failed = (await owner.post("/v1/agents/plain/invoke", { input: "Hi" })).json;
  expect((await stranger.post(`/v1/agents/runs/${failed.run_id}/resume`)).json.code).toBe("run_not_found");
  const { session_id } = failed;
  await owner.post("/v1/agents/plain/invoke", { input: "Hi", session_id });
  expect((await tryResume(failed.run_id)).detail).toContain("a later run");

  const ended = (await owner.post("/v1/agents/plain/invoke", { input: "Hi" })).json;
  await owner.call("DELETE", `/v1/agents/plain/sessions/${ended.session_id}`);
  expect(await tryResume(ended.run_id)).toMatchObject({ code: "session_ended" });

  const old = (await owner.post("/v1/agents/plain/invoke", { input: "Hi" })).json;
  const past = new Date(Date.now() - 1);
  await host.app.db
    .updateTable("agent_runs")
    .set({ output_expires_at: past })
    .where("id", "=", old.run_id)
    .execute();
  expect((await tryResume(old.run_id)).detail).toContain("an hour");

  await owner.call("PATCH", "/v1/agents/plain", { paused: true });
  expect(await tryResume(ended.run_id)).toMatchObject({ code: "agent_paused" });
  await owner.call("PATCH", "/v1/agents/plain", { paused: false });
});

test("resumes a run once for two concurrent requests", async () => {
  model.script([refusal]);
  const { json } = await owner.post("/v1/agents/plain/invoke", { input: "Hi" });
  model.script([{ text: ["Hello."] }]);
  const path = `/v1/agents/runs/${json.run_id}/resume`;
  const answers = await Promise.all([owner.post(path), owner.post(path)]);
  expect(answers.map(({ status }) => status).filter((status) => status === 200)).not.toHaveLength(0);
  expect(await outcomeOf(json.run_id)).toMatchObject({ status: "completed", resumes: 1 });
});

test("resumes a run after forty attempts by lost processes, and restarts the backoff of its model", async () => {
  model.script([refusal]);
  const { json } = await owner.post("/v1/agents/plain/invoke", { input: "Hi" });
  await sql`update agent_runs set attempts = 40, model_waits = 12 where id = ${json.run_id}`.execute(
    host.app.db,
  );
  model.script([...[1, 2, 3].map(() => ({ status: 429 })), { text: ["Hello."] }]);
  expect(await resume(json.run_id)).toMatchObject({ status: "completed", attempts: 41 });
});

test("keeps the text of a run that was resumed after a sweep had selected the text as expired", async () => {
  model.script([call, refusal]);
  const { json } = await owner.post("/v1/agents/selling/invoke", { input: "Sell it." });
  const now = new Date();
  model.script([{ text: ["Sold."] }]);
  await resume(json.run_id);
  await stripTexts(host.app.db, json.run_id, { now });
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json.output).toBe("Sold.");
  const { frames } = await readFrames(`${host.baseUrl}/v1/agents/runs/${json.run_id}/stream`, {
    token: owner.token,
  });
  expect(frames.filter(({ data }) => data.expired)).toEqual([]);
});

test("lists a tool call as running until the tool responds", async () => {
  shop.asked = [];
  const made = Promise.withResolvers<void>();
  shop.answer = (_, response) => void made.promise.then(() => response.writeHead(200).end("{}"));
  model.script([call, { text: ["Sold."] }]);
  const { json } = await owner.post("/v1/agents/selling/invoke", { input: "Sell it.", wait_s: 0 });
  await expect.poll(() => shop.asked.length, { timeout: 20_000 }).toBe(1);
  const during = (await owner.get(`/v1/agents/runs/${json.run_id}`)).json;
  expect(during.tools_called).toMatchObject([{ status: "running", duration_ms: null }]);
  made.resolve();
  shop.answer = undefined;
  expect(await outcomeOf(json.run_id)).toMatchObject({ tools_called: [{ status: "completed" }] });
});

test("returns 404 for a run whose session is deleted during its resume", async () => {
  model.script([refusal]);
  const { json } = await owner.post("/v1/agents/plain/invoke", { input: "Hi" });
  let resuming: Promise<Json> | undefined;
  // This transaction locks the session, and the resume locks the run: a deadlock. PostgreSQL aborts the resume, which
  // waits first, if the delete also waits within a second. The loop runs in PostgreSQL to stay within that second.
  // Locks of other test files are in other databases of the same server.
  await host.app.db.transaction().execute(async (tx) => {
    await sql`select from agent_sessions where id = ${json.session_id} for update`.execute(tx);
    resuming = owner.post(`/v1/agents/runs/${json.run_id}/resume`);
    await sql`do $$ begin
      while not exists (
        select from pg_locks waiting
        join pg_locks held on held.pid = waiting.pid
        join pg_database on oid = held.database and datname = current_database()
        where not waiting.granted
      ) loop
        perform pg_sleep(0.005);
      end loop;
      delete from agent_sessions where id = ${sql.lit(json.session_id)};
    end $$`.execute(tx);
  });
  expect(await resuming).toMatchObject({ status: 404, json: { code: "run_not_found" } });
});
