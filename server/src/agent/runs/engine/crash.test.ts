/** Recovery of runs after a crash or a stop of their process. */
import { randomBytes } from "node:crypto";
import { sql } from "kysely";
import { afterEach, expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { SecretBox } from "#lib/secret-box.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { RunExecutor } from "./run-executor.ts";

const key = randomBytes(32);
const model = await startModelServer();
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true });
const owner = await host.person();
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const config = {
  ...(await modelConfig(owner, model.url)),
  output: { type: "json_schema", schema },
};
await owner.post("/v1/agents", { name: "crashing", config });
afterEach(() => onKillPoint(undefined));

/**
 * Answers in two steps: the first answer does not match the schema, the second does. The delays leave time to store
 * each delta.
 */
function answerTwice(body: Json): { text: string[]; delayMs: number } {
  const isRepair = String(body.messages.at(-1).content).includes("does not fit");
  return { text: isRepair ? ['{"city":', '"Bremen"}'] : ['{"town":', "1}"], delayMs: 30 };
}

const count = async (table: string, runId: string) =>
  (await sql`select from ${sql.table(table)} where run_id = ${runId}`.execute(host.app.db)).rows.length;

async function eventsOf(runId: string): Promise<Json[]> {
  const url = `${host.baseUrl}/v1/agents/runs/${runId}/stream`;
  return (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
}

test.each([
  "agent.run.taken",
  "agent.step.begins",
  "agent.events.stored",
  "agent.step.answered",
  "agent.step.commits",
  "agent.step.committed",
])("continues a run after a kill at %s without repeating a step", async (point) => {
  model.script(answerTwice);
  const { json } = await owner.post("/v1/agents/crashing/invoke", { input: "Where?", wait_s: 0 });
  // Sets the state after the process that acquired the run committed the acquisition.
  await host.app.db
    .updateTable("agent_runs")
    .set({ process_id: null })
    .where("id", "=", json.run_id)
    .execute();
  expect(await runUntilKilled(host.connection, key, point)).toBe("SIGKILL");
  const next = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
  try {
    await next.start();
    await next.waitForOutcome(json.run_id, 20_000);
  } finally {
    await next.stop();
  }
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    status: "completed",
    output: '{"city":"Bremen"}',
    attempts: 2,
    steps: 2,
    tokens: { total: 30 },
  });
  expect(await count("agent_steps", json.run_id)).toBe(2);
  // The messages are the input, an answer, a repair request and an answer.
  expect(await count("agent_messages", json.run_id)).toBe(4);
  const events = await eventsOf(json.run_id);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
  expect(events.filter(({ type }) => type === "step.completed").map(({ step }) => step)).toEqual([1, 2]);
  expect(events.filter(({ type }) => type === "run.completed")).toHaveLength(1);
  // An event resets an incomplete step.
  const open = events.filter(({ type }) => type === "step.started").length - 2;
  expect(events.filter(({ type }) => type === "step.reset")).toHaveLength(open);
});

test("rejects writes of a process that lost its run to another", async () => {
  model.script(answerTwice);
  const reached = Promise.withResolvers<void>();
  const mayGoOn = Promise.withResolvers<void>();
  let isFirst = true;
  onKillPoint(async (point) => {
    if (point !== "agent.step.answered" || !isFirst) return;
    isFirst = false;
    reached.resolve();
    await mayGoOn.promise;
  });
  const { json } = await owner.post("/v1/agents/crashing/invoke", { input: "Where?", wait_s: 0 });
  const slow = new RunExecutor(host.app, { pauseMs: 5 });
  const next = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await slow.start();
    await reached.promise;
    await next.start();
    await next.waitForOutcome(json.run_id, 20_000);
    const before = await eventsOf(json.run_id);
    mayGoOn.resolve();
    await slow.stop();
    expect(await eventsOf(json.run_id)).toEqual(before);
    expect(await count("agent_steps", json.run_id)).toBe(2);
    expect(before.filter(({ type }) => type === "run.completed")).toHaveLength(1);
  } finally {
    mayGoOn.resolve();
    await slow.stop();
    await next.stop();
  }
});

test("executes new runs while a lock on an expired run delays its erasure", async () => {
  model.script([{ text: ['{"city":"Ulm"}'] }]);
  const ask = async () =>
    (await owner.post("/v1/agents/crashing/invoke", { input: "Where?", wait_s: 0 })).json.run_id as string;
  const first = new RunExecutor(host.app, { pauseMs: 5 });
  const said = await ask();
  await first.start();
  await first.waitForOutcome(said, 20_000);
  await first.stop();
  const past = new Date(Date.now() - 1);
  await host.app.db
    .updateTable("agent_runs")
    .set({ output_expires_at: past })
    .where("id", "=", said)
    .execute();
  const next = new RunExecutor(host.app, { pauseMs: 5, eraseEveryMs: 0 });
  try {
    await host.app.db.transaction().execute(async (tx) => {
      await tx.selectFrom("agent_runs").select("id").where("id", "=", said).forUpdate().execute();
      await next.start();
      const held = sql`select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`;
      await expect
        .poll(async () => (await held.execute(host.app.db)).rows.length, { timeout: 10_000 })
        .toBe(1);
      const id = await ask();
      await next.waitForOutcome(id, 20_000);
      expect((await owner.get(`/v1/agents/runs/${id}`)).json.status).toBe("completed");
    });
    const isExpired = host.app.db.selectFrom("agent_runs").select("expired").where("id", "=", said);
    await expect
      .poll(async () => (await isExpired.executeTakeFirstOrThrow()).expired, { timeout: 10_000 })
      .toBe(true);
  } finally {
    await next.stop();
  }
});

test("a stopping server releases its runs, and the next process continues them", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }, { text: ['{"city":"Ulm"}'] }]);
  const { json } = await owner.post("/v1/agents/crashing/invoke", { input: "Where?", wait_s: 0 });
  const first = new RunExecutor(host.app, { pauseMs: 5 });
  await first.start();
  await expect.poll(() => model.asked.length).toBe(1);
  await first.stop();
  const row = await host.app.db
    .selectFrom("agent_runs")
    .select(["status", "process_id"])
    .where("id", "=", json.run_id)
    .executeTakeFirstOrThrow();
  expect(row).toEqual({ status: "running", process_id: null });
  const next = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await next.start();
    await next.waitForOutcome(json.run_id, 20_000);
  } finally {
    await next.stop();
    never.resolve();
  }
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    status: "completed",
    output: '{"city":"Ulm"}',
  });
});

test("continues a run however often its server is stopped gracefully", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  const { json } = await owner.post("/v1/agents/crashing/invoke", { input: "Where?", wait_s: 0 });
  for (let stops = 1; stops <= 12; stops += 1) {
    const runs = new RunExecutor(host.app, { pauseMs: 5 });
    await runs.start();
    await expect.poll(() => model.asked.length).toBe(stops);
    await runs.stop();
  }
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    status: "running",
    attempts: 12,
  });
  never.resolve();
});
