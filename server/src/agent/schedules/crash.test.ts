/** Kills a process while it starts a scheduled run, and continues with the next process. */
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { Scheduler } from "./scheduler.ts";

const key = randomBytes(32);
const model = await startModelServer();
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true });
const owner = await host.person();
const config = await modelConfig(owner, model.url);
let made = 0;

async function agent(): Promise<string> {
  const name = `crashing-${(made += 1)}`;
  expect((await owner.post("/v1/agents", { name, config })).status).toBe(201);
  return name;
}

/** Starts a process that is killed at the point. Resolves when the process exits. */
function runUntilKilledAt(point: string, ...more: string[]): Promise<string | null> {
  const program = fileURLToPath(new URL("../../../test/programs/agent-triggers.ts", import.meta.url));
  const args = [program, JSON.stringify(host.connection), key.toString("hex"), point, ...more];
  return new Promise((resolve) => {
    const child = execFile(process.execPath, args, { timeout: 60_000 });
    child.on("exit", (_, signal) => resolve(signal));
  });
}

const runsOf = async (name: string): Promise<Json[]> =>
  (await owner.get(`/v1/agents/runs?agent=${name}`)).json.items;

/** Completes the run in a later process, and returns its status. */
async function completeRun(id: string): Promise<string> {
  const next = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
  try {
    await next.start();
    await next.waitForOutcome(id, 20_000);
  } finally {
    await next.stop();
  }
  return (await owner.get(`/v1/agents/runs/${id}`)).json.status;
}

test.each([
  ["agent.schedule.due", 0],
  ["agent.schedule.commits", 0],
  ["agent.schedule.committed", 1],
])("starts one run per scheduled time, and completes the run after a kill at %s", async (point, before) => {
  const name = await agent();
  model.script([{ text: ["Yes."] }]);
  const { json } = await owner.post(`/v1/agents/${name}/schedules`, { schedule: "every 1h", message: "?" });
  const tick = new Date(Math.floor(Date.now() / 1000) * 1000 - 5_000);
  await host.app.db
    .updateTable("agent_schedules")
    .set({ next_run_at: tick })
    .where("id", "=", json.id)
    .execute();
  expect(await runUntilKilledAt(point)).toBe("SIGKILL");
  expect(await runsOf(name)).toHaveLength(before);
  const next = new Scheduler(host.app, host.runs);
  await next.sweep();
  await next.sweep();
  const [run, ...more] = await runsOf(name);
  expect(more).toEqual([]);
  expect(await completeRun(run!.run_id)).toBe("completed");
  await next.sweep();
  const ticks = await host.app.db
    .selectFrom("agent_schedule_ticks")
    .select(["tick", "status", "run_id"])
    .where("schedule_id", "=", json.id)
    .execute();
  expect(ticks).toEqual([{ tick, status: "completed", run_id: run!.run_id }]);
});

test.each([
  ["agent.webhook.commits", 0],
  ["agent.webhook.committed", 1],
])("starts and counts one run for a repeated delivery after a kill at %s", async (point, before) => {
  const name = await agent();
  model.script([{ text: ["Yes."] }]);
  const { json } = await owner.post(`/v1/agents/${name}/webhooks`, { name: "forge" });
  expect(await runUntilKilledAt(point, json.id)).toBe("SIGKILL");
  expect(await runsOf(name)).toHaveLength(before);
  for (let n = 0; n < 2; n += 1) {
    const response = await fetch(`${host.baseUrl}/v1/hooks/agents/${json.id}`, {
      method: "POST",
      headers: { authorization: `Bearer ${json.secret}`, "webhook-id": "the-only-one" },
      body: "{}",
    });
    expect(response.status).toBe(202);
  }
  const [run, ...more] = await runsOf(name);
  expect(more).toEqual([]);
  expect(await completeRun(run!.run_id)).toBe("completed");
  expect((await owner.get(`/v1/agents/${name}/webhooks`)).json.items[0].runs_today).toBe(1);
});
