/** A run's active time: the time of work on the run. Parallel work counts once, whatever its outcome. */
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { RunExecutor } from "./run-executor.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const toolset = await owner.post("/v1/agent-toolsets", {
  name: "set",
  kind: "http",
  url: tools.url,
  http_tools: [
    { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
  ],
});
const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: toolset.json.id }] };
await owner.post("/v1/agents", { name: "timed", config });
const call = { calls: [{ name: "set__find", arguments: "{}" }] };
/** Delay that is much longer than the rest of a run. */
const slowMs = 600;
tools.answer = (_, response) => void sleep(slowMs).then(() => response.writeHead(200).end("{}"));

const activeMs = async (runId: string) =>
  (
    await host.app.db
      .selectFrom("agent_runs")
      .select("active_ms")
      .where("id", "=", runId)
      .executeTakeFirstOrThrow()
  ).active_ms;

test("adds the time of a tool call to the run's active time once", async () => {
  model.script([call, call, { text: ["Done."] }]);
  const startedMs = performance.now();
  const { json } = await owner.post("/v1/agents/timed/invoke", { input: "Hi" });
  const tookMs = performance.now() - startedMs;
  expect(json.status).toBe("completed");
  expect(await activeMs(json.run_id)).toBeLessThanOrEqual(tookMs);
  expect(await activeMs(json.run_id)).toBeGreaterThanOrEqual(2 * slowMs - 50);
});

test("adds the last step of a failed run to its active time", async () => {
  const away = Promise.withResolvers<void>();
  model.script([{ status: 400, until: away.promise }]);
  setTimeout(away.resolve, slowMs);
  const { json } = await owner.post("/v1/agents/timed/invoke", { input: "Hi" });
  expect(json.status).toBe("failed");
  expect(await activeMs(json.run_id)).toBeGreaterThanOrEqual(slowMs / 2);
});

test("adds the work of a process that stops to the run's active time", async () => {
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  await host.runs.stop();
  const { json } = await owner.post("/v1/agents/timed/invoke", { input: "Hi", wait_s: 0 });
  const runs = new RunExecutor(host.app);
  await runs.start();
  await expect.poll(() => model.asked.length).toBe(1);
  await sleep(slowMs);
  await runs.stop();
  expect(await activeMs(json.run_id)).toBeGreaterThanOrEqual(slowMs - 50);
  never.resolve();
});
