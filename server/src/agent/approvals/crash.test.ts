/** Kills a process before or after an approval, and continues in the next process. */
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { runUntilKilled } from "../testing/killed-server.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";

const key = randomBytes(32);
const model = await startModelServer();
const shop = await startToolServer();
// This server serves requests and executes no runs, so other servers execute the committed runs.
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
const config = {
  ...(await modelConfig(owner, model.url)),
  toolsets: [{ toolset_id: toolset.id, policy: "ask" }],
};
await owner.post("/v1/agents", { name: "asking", config });

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;
const runUntilKill = (point: string) => runUntilKilled(host.connection, key, point);

/** Runs a server until the run waits or is over, and then stops it gracefully. */
async function work(runId: string): Promise<void> {
  const runs = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
  try {
    await runs.start();
    await runs.waitForOutcome(runId, 20_000);
  } finally {
    await runs.stop();
  }
}

async function invoke(calls = [{ name: "shop__sell", arguments: '{"id":"7"}' }]): Promise<string> {
  shop.asked = [];
  // The model makes the calls first, and then gives a final answer.
  model.script(({ messages }: Json) => (messages.at(-1).role === "tool" ? { text: ["Done."] } : { calls }));
  const { json } = await owner.post("/v1/agents/asking/invoke", { input: "Sell it.", wait_s: 0 });
  // Imitates a commit by the process that acquired the run.
  await host.app.db
    .updateTable("agent_runs")
    .set({ process_id: null })
    .where("id", "=", json.run_id)
    .execute();
  return json.run_id as string;
}

async function approve(runId: string): Promise<void> {
  const { status, approval } = await run(runId);
  expect(status).toBe("pending_approval");
  const path = `/v1/agents/runs/${runId}/approvals/${approval.request_id}`;
  expect((await owner.post(path, { decision: "approve" })).status).toBe(200);
}

async function expectOneOf(runId: string, ...types: string[]): Promise<void> {
  const url = `${host.baseUrl}/v1/agents/runs/${runId}/stream`;
  const events = (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
  for (const type of types) expect(events.filter((event) => event.type === type)).toHaveLength(1);
}

test.each(["agent.step.committed", "agent.approval.raised"])(
  "requests one approval and makes the approved call once after a kill at %s",
  async (point) => {
    const runId = await invoke();
    expect(await runUntilKill(point)).toBe("SIGKILL");
    await work(runId);
    expect(shop.asked).toEqual([]);
    await approve(runId);
    await work(runId);
    expect(await run(runId)).toMatchObject({ status: "completed", tools_called: [{ status: "completed" }] });
    expect(shop.asked.map(({ body }) => body)).toEqual(['{"id":"7"}']);
    await expectOneOf(runId, "approval.requested", "approval.resolved", "tool.completed", "run.completed");
  },
);

test.each([
  // The server that acquired the decided run died before it committed more.
  ["agent.approval.decided", 1, "completed"],
  ["agent.run.taken", 1, "completed"],
  // The tool server may have received these calls, so they are not repeated.
  ["agent.call.began", 0, "unknown"],
  ["agent.call.answered", 1, "unknown"],
  ["agent.call.ended", 1, "completed"],
])("makes an approved call at most once after a kill at %s, behind the decision", async (...of) => {
  const [point, calls, status] = of;
  const runId = await invoke();
  await work(runId);
  await approve(runId);
  if (point !== "agent.approval.decided") expect(await runUntilKill(point)).toBe("SIGKILL");
  await work(runId);
  expect(await run(runId)).toMatchObject({ status: "completed", tools_called: [{ status }] });
  expect(shop.asked).toHaveLength(calls);
  await expectOneOf(runId, "approval.requested", "approval.resolved", "run.completed");
});

// The idle server commits decisions and executes nothing, like a server that is killed after each decision.
test.each(["agent.approval.raised", "agent.run.taken", "agent.call.began", "agent.call.ended"])(
  "keeps each of several decisions when servers are killed between decisions and at %s",
  async (point) => {
    const ids = ["1", "2", "3"];
    const runId = await invoke(ids.map((id) => ({ name: "shop__sell", arguments: `{"id":"${id}"}` })));
    if (point === "agent.approval.raised") expect(await runUntilKill(point)).toBe("SIGKILL");
    await work(runId);
    const { approvals } = await run(runId);
    expect(approvals.map((one: Json) => one.arguments.id)).toEqual(ids);
    const path = (n: number) => `/v1/agents/runs/${runId}/approvals/${approvals[n].request_id}`;
    const changed = { id: "20" };
    expect((await owner.post(path(2), { decision: "deny" })).status).toBe(200);
    await work(runId);
    expect((await owner.post(path(1), { decision: "approve", arguments: changed })).status).toBe(200);
    await work(runId);
    expect(shop.asked).toEqual([]);
    expect((await run(runId)).approvals).toEqual([approvals[0]]);
    expect((await owner.post(path(0), { decision: "approve" })).status).toBe(200);
    if (point !== "agent.approval.raised") expect(await runUntilKill(point)).toBe("SIGKILL");
    await work(runId);
    const { status, tools_called } = await run(runId);
    expect([status, tools_called[2].status]).toEqual(["completed", "denied"]);
    // No call is made twice, and the journal contains each interrupted call.
    const bodies = shop.asked.map(({ body }) => body);
    expect(new Set(bodies).size).toBe(bodies.length);
    for (const [n, body] of ['{"id":"1"}', '{"id":"20"}'].entries())
      if (!bodies.includes(body)) expect(tools_called[n].status).toBe("unknown");
    await expectOneOf(runId, "run.pending_approval", "run.completed");
  },
);
