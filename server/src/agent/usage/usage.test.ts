import { expect, test } from "vitest";
import { agentHost, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
await owner.post("/v1/agents", { name: "counted", config: await modelConfig(owner, model.url) });
const invoke = (body: object = {}) => owner.post("/v1/agents/counted/invoke", { input: "Hi", ...body });
const usage = async (query = "") => (await owner.get(`/v1/agents/counted/usage${query}`)).json;

test("sums runs and tokens by end user, day and model", async () => {
  model.script([
    { usage: { prompt_tokens: 10, completion_tokens: 5 } },
    { usage: { prompt_tokens: 100, completion_tokens: 50 } },
    { status: 400 },
  ]);
  await invoke();
  await invoke({ end_user_id: "ada" });
  await invoke({ end_user_id: "ada" });
  const json = await usage();
  expect(json).toMatchObject({
    agent: "counted",
    days: 30,
    totals: { runs: 3, completed: 2, failed: 1, input_tokens: 110, output_tokens: 55, total_tokens: 165 },
    end_users: [
      { end_user_id: "ada", runs: 2, failed: 1, total_tokens: 150 },
      { end_user_id: "-", runs: 1, total_tokens: 15 },
    ],
    by_day: [{ day: json.to.slice(0, 10), runs: 3, total_tokens: 165 }],
    by_model: [{ model: "scripted", calls: 2, total_tokens: 165 }],
  });
  expect(json.totals.active_seconds).toBeGreaterThan(0);
  expect((await usage("?days=1")).totals).toEqual(json.totals);
});

test("limits the queried period to ninety days, and excludes runs before the period", async () => {
  expect(await usage("?days=91")).toMatchObject({ code: "invalid_request", pointer: "/days" });
  await invoke();
  await host.app.db
    .updateTable("agent_runs")
    .set({ created_at: new Date(Date.now() - 40 * 86_400_000) })
    .execute();
  expect((await usage()).totals.runs).toBe(0);
  expect((await usage("?days=90")).totals.runs).toBeGreaterThan(0);
});
