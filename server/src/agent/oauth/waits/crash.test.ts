/**
 * Servers that are killed before, during or after a wait for a sign-in, and the runs that the next server continues.
 */
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { freePort } from "#agent/testing/free-port.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startSignInServer, TestBrowser } from "#agent/testing/sign-in-server.ts";

const key = randomBytes(32);
const port = String(await freePort());
// This server serves requests and executes no runs, so other servers execute the committed runs.
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true, config: { port } });
const owner = await host.person();
const model = await startModelServer();
const shop = await startSignInServer({
  redirectUri: `${host.baseUrl}/connect/callback`,
  isRegistering: true,
});
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.resource,
  auth_type: "oauth",
  oauth_per_end_user: true,
  http_tools: [{ name: "me", description: "", method: "POST", path: "/me", parameters: { type: "object" } }],
});
const config = {
  ...(await modelConfig(owner, model.url)),
  toolsets: [{ toolset_id: toolset.id }],
  connections: { wait_minutes: 60 },
};
await owner.post("/v1/agents", { name: "patient", config });
let people = 0;

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;
const runUntilKill = (point: string) => runUntilKilled(host.connection, key, point);

/** Runs a server until the run waits or ends, and then stops it gracefully. */
async function work(runId: string, until = "settled"): Promise<void> {
  const runs = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
  try {
    await runs.start();
    if (until === "settled") await runs.waitForOutcome(runId, 20_000);
    else await expect.poll(async () => (await run(runId)).status, { timeout: 20_000 }).toBe(until);
  } finally {
    await runs.stop();
  }
}

async function invoke(): Promise<string> {
  shop.calls = [];
  model.script(({ messages }: Json) =>
    messages.at(-1).role === "tool"
      ? { text: ["Done."] }
      : { calls: [{ name: "shop__me", arguments: "{}" }] },
  );
  const body = { input: "Go.", wait_s: 0, end_user_id: `person-${(people += 1)}` };
  const { json } = await owner.post("/v1/agents/patient/invoke", body);
  // Imitates a commit by the process that acquired the run.
  await host.app.db
    .updateTable("agent_runs")
    .set({ process_id: null })
    .where("id", "=", json.run_id)
    .execute();
  return json.run_id as string;
}

/** Opens the newest link at the idle server, because the links of killed servers lead to their own address. */
async function signIn(runId: string): Promise<void> {
  const { sign_in } = await run(runId);
  const { pathname } = new URL(sign_in.at(-1).authorize_url);
  const page = await new TestBrowser().signIn(host.baseUrl + pathname, "ada");
  expect(page.text).toContain("You are connected");
}

async function eventsOf(runId: string): Promise<Json[]> {
  const url = `${host.baseUrl}/v1/agents/runs/${runId}/stream`;
  const events = (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
  expect(events.map(({ seq }) => seq)).toEqual(events.map((_, index) => index + 1));
  return events;
}

test.each(["agent.sign_in.requested", "agent.call.answered", "agent.approval.raised"])(
  "makes the call after the sign-in when a server is killed at %s",
  async (point) => {
    const runId = await invoke();
    expect(await runUntilKill(point)).toBe("SIGKILL");
    await work(runId);
    expect(await run(runId)).toMatchObject({ status: "pending_approval", waiting_for_sign_in: {} });
    await signIn(runId);
    await work(runId, "completed");
    // The tool is not repeatable, but the first call had no effect, so the outcome is known.
    expect(await run(runId)).toMatchObject({ status: "completed", tools_called: [{ status: "completed" }] });
    expect(shop.calls).toHaveLength(1);
    const parked = (await eventsOf(runId)).filter(({ type }) => type === "run.pending_approval");
    expect(parked).toHaveLength(1);
  },
);

test.each([
  // The sign-in was stored while no server executed runs.
  ["nothing", 1, "completed"],
  ["agent.sign_in.resolved", 1, "completed"],
  ["agent.run.taken", 1, "completed"],
  ["agent.call.began", 0, "unknown"],
  ["agent.call.answered", 1, "unknown"],
  ["agent.call.ended", 1, "completed"],
])("makes the call at most once when a server is killed after the sign-in, at %s", async (...of) => {
  const [point, calls, status] = of;
  const runId = await invoke();
  await work(runId);
  await signIn(runId);
  if (point !== "nothing") expect(await runUntilKill(point)).toBe("SIGKILL");
  await work(runId, "completed");
  expect((await run(runId)).tools_called).toMatchObject([{ status }]);
  expect(shop.calls).toHaveLength(calls);
  const events = await eventsOf(runId);
  for (const type of ["connection.auth_resolved", "run.completed"])
    expect(events.filter((event) => event.type === type)).toHaveLength(1);
});

test("expires a wait for a sign-in at its deadline after the waiting run's server was killed", async () => {
  const runId = await invoke();
  expect(await runUntilKill("agent.approval.raised")).toBe("SIGKILL");
  await host.app.db
    .updateTable("agent_sign_in_waits")
    .set({ expires_at: new Date(Date.now() - 1) })
    .where("run_id", "=", runId)
    .execute();
  await work(runId, "completed");
  expect((await run(runId)).tools_called).toMatchObject([{ status: "expired" }]);
});
