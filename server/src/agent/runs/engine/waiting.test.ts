/** Runs that wait for an overloaded model occupy no worker. */
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { RunExecutor } from "./run-executor.ts";

const model = await startModelServer();
const host = await agentHost({ isIdle: true });
const owner = await host.person();
const config = await modelConfig(owner, model.url);
await owner.post("/v1/agents", { name: "patient", config });

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;
const busy = { status: 429, headers: { "retry-after": "3" } };

async function begin(): Promise<string> {
  const { json } = await owner.post("/v1/agents/patient/invoke", { input: "Hi", wait_s: 0 });
  return json.run_id as string;
}

/** Executes the run in a server that stops after the run is parked. */
async function park(id: string): Promise<void> {
  const first = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await first.start();
    await expect
      .poll(async () => (await run(id)).waiting_for_model, { timeout: 20_000 })
      .toEqual({ retry_at: expect.stringMatching(/Z$/) });
  } finally {
    await first.stop();
  }
}

test("parks a run while its model is overloaded, and completes the run in the next server", async () => {
  model.script([busy, { text: ["Hi."] }]);
  const id = await begin();
  await park(id);
  const row = await host.app.db
    .selectFrom("agent_runs")
    .select(["status", "process_id", "retry_at", "resumed", "attempts"])
    .where("id", "=", id)
    .executeTakeFirstOrThrow();
  expect(row).toMatchObject({ status: "queued", process_id: null, resumed: 1, attempts: 1 });
  expect(model.asked).toHaveLength(1);
  const next = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await next.start();
    await next.waitForOutcome(id, 20_000);
  } finally {
    await next.stop();
  }
  expect(await run(id)).toMatchObject({ status: "completed", output: "Hi.", waiting_for_model: null });
  const url = `${host.baseUrl}/v1/agents/runs/${id}/stream`;
  const events = (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
  const [waiting, ...more] = events.filter(({ type }) => type === "model.waiting");
  expect(more).toEqual([]);
  expect(waiting).toMatchObject({ step: 1, retry_at: row.retry_at!.toISOString() });
  // The next server does not call the model before `retry_at`.
  const started = events.filter(({ type }) => type === "run.started");
  expect(started).toHaveLength(2);
  expect(Date.parse(started[1]!.at)).toBeGreaterThanOrEqual(Date.parse(waiting!.retry_at));
});

test("cancels a parked run", async () => {
  model.script([{ status: 429, headers: { "retry-after": "600" } }]);
  const id = await begin();
  await park(id);
  const activeMs = async () =>
    (
      await host.app.db
        .selectFrom("agent_runs")
        .select("active_ms")
        .where("id", "=", id)
        .executeTakeFirstOrThrow()
    ).active_ms;
  expect(await activeMs()).toBeGreaterThanOrEqual(600_000);
  const { json } = await owner.post(`/v1/agents/runs/${id}/cancel`);
  expect(json).toMatchObject({ status: "failed", error_code: "cancelled", waiting_for_model: null });
  // The remaining time of the wait does not count.
  expect(await activeMs()).toBeLessThan(600_000);
});

test("fails a run whose model's Retry-After exceeds the run's time limit", async () => {
  model.script([{ status: 429, headers: { "retry-after": "3600" } }]);
  const id = await begin();
  const runs = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await runs.start();
    await runs.waitForOutcome(id, 20_000);
  } finally {
    await runs.stop();
  }
  expect(await run(id)).toMatchObject({ status: "failed", error_code: "model_rate_limited" });
});

test("parks a run while its model's server returns 503", async () => {
  model.script([{ status: 503, headers: { "retry-after": "3" } }]);
  const id = await begin();
  await park(id);
  expect(await run(id)).toMatchObject({ status: "queued", error_code: null });
});

test("restarts the backoff of a run after a completed step", async () => {
  model.script([
    { calls: [{ name: "none", arguments: "{}" }] },
    ...[1, 2, 3].map(() => ({ status: 429 })),
    { text: ["Hi."] },
  ]);
  const id = await begin();
  // Imitates many waits of the first step.
  await host.app.db.updateTable("agent_runs").set({ model_waits: 12 }).where("id", "=", id).execute();
  const runs = new RunExecutor(host.app, { pauseMs: 5 });
  try {
    await runs.start();
    await expect.poll(async () => (await run(id)).finished_at, { timeout: 20_000 }).not.toBeNull();
  } finally {
    await runs.stop();
  }
  expect(await run(id)).toMatchObject({ status: "completed", attempts: 1 });
});
