/** Resumes a run in a server that is killed, and continues the run in the next server. */
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { RunExecutor } from "./run-executor.ts";

const key = randomBytes(32);
const model = await startModelServer();
const shop = await startToolServer();
// This server accepts requests and executes no runs. Other servers execute the runs.
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true });
const owner = await host.person();
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [
    { name: "sell", description: "", method: "POST", path: "/sell", parameters: { type: "object" } },
  ],
});
const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: toolset.id }] };
await owner.post("/v1/agents", { name: "selling", config });

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;

async function work(runId: string): Promise<void> {
  const runs = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
  try {
    await runs.start();
    await runs.waitForOutcome(runId, 20_000);
  } finally {
    await runs.stop();
  }
}

test.each(["agent.run.taken", "agent.step.begins", "agent.step.answered", "agent.step.commits"])(
  "completes a resumed run in the next server after a kill at %s, with each tool call made once",
  async (point) => {
    shop.asked = [];
    const call = { calls: [{ name: "shop__sell", arguments: '{"id":"7"}' }] };
    model.script([call, { status: 400, error: "no such model" }]);
    const { json } = await owner.post("/v1/agents/selling/invoke", { input: "Sell it.", wait_s: 0 });
    await host.app.db
      .updateTable("agent_runs")
      .set({ process_id: null })
      .where("id", "=", json.run_id)
      .execute();
    await work(json.run_id);
    expect((await run(json.run_id)).status).toBe("failed");
    model.script([{ text: ["Sold."] }]);
    const { status, json: queued } = await owner.post(`/v1/agents/runs/${json.run_id}/resume`);
    expect([status, queued.status]).toEqual([200, "queued"]);
    expect(await runUntilKilled(host.connection, key, point)).toBe("SIGKILL");
    await work(json.run_id);
    expect(await run(json.run_id)).toMatchObject({
      status: "completed",
      output: "Sold.",
      steps: 2,
      resumes: 1,
      tools_called: [{ status: "completed" }],
    });
    expect(shop.asked).toHaveLength(1);
    const url = `${host.baseUrl}/v1/agents/runs/${json.run_id}/stream`;
    const events = (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
    expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
    expect(events.filter(({ type }) => type === "run.resumed")).toHaveLength(1);
    expect(events.at(-1).type).toBe("run.completed");
  },
);
