/**
 * Limits the number of SQL statements for each run. Each statement is a round trip to the database, and round trips
 * take most of a run's time.
 */
import pg from "pg";
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { follow } from "../api/follow.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const tool = {
  name: "look",
  description: "Looks.",
  method: "GET",
  path: "/look",
  parameters: { type: "object" },
};
const toolset = await owner.post("/v1/agent-toolsets", {
  name: "desk",
  kind: "http",
  url: tools.url,
  http_tools: [tool],
});
const config = { ...(await modelConfig(owner, model.url)), toolsets: [{ toolset_id: toolset.json.id }] };
await owner.post("/v1/agents", { name: "clerk", config });

/** Returns the SQL statements that are sent during `work`. */
async function sentDuring(work: () => Promise<unknown>, sent: string[] = []): Promise<string[]> {
  const client = pg.Client.prototype as unknown as { query: (...given: unknown[]) => unknown };
  const { query } = client;
  client.query = function (this: unknown, ...given: unknown[]) {
    const [statement] = given as [string | { text: string }];
    sent.push(typeof statement === "string" ? statement : statement.text);
    return query.apply(this, given);
  };
  try {
    await work();
  } finally {
    client.query = query;
  }
  return sent;
}

/** Returns the minimum of several measurements, because polls for orphans send statements in between. */
async function fewest(work: () => Promise<unknown>): Promise<number> {
  const counts: number[] = [];
  for (let n = 0; n < 5; n += 1) counts.push((await sentDuring(work)).length);
  return Math.min(...counts);
}

async function ask(session?: string): Promise<string> {
  const { json } = await owner.post("/v1/agents/clerk/invoke", { input: "Go.", session_id: session });
  expect(json.status).toBe("completed");
  return json.session_id as string;
}

model.script(({ messages }) =>
  messages.at(-1).role === "tool"
    ? { text: ["Done."] }
    : { calls: [{ name: "desk__look", arguments: "{}" }] },
);

test("executes twelve SQL statements for a run of two steps and a call in a new session", async () => {
  expect(await fewest(() => ask())).toBe(12);
});

test("executes twenty-one SQL statements for a run in an existing session, and seven for the session's end", async () => {
  const sessions = [await ask()];
  expect(await fewest(() => ask(sessions[0]))).toBe(21);
  for (let n = 0; n < 4; n += 1) sessions.push(await ask());
  const end = () => owner.call("DELETE", `/v1/agents/clerk/sessions/${sessions.pop()}`);
  expect(await fewest(end)).toBe(7);
});

test("shares queries for events among readers of a run, during its wait and at its end", async () => {
  const asking = { ...config, toolsets: [{ toolset_id: toolset.json.id, policy: "ask" }] };
  await owner.post("/v1/agents", { name: "asker", config: asking });
  const { json } = await owner.post("/v1/agents/asker/invoke", { input: "Go." });
  expect(json.status).toBe("pending_approval");
  const run = await host.app.db
    .selectFrom("agent_runs")
    .select(["id", "session_id", "expired", "output_expires_at"])
    .where("id", "=", json.run_id as string)
    .executeTakeFirstOrThrow();
  const leave = new AbortController();
  const last: string[] = [];
  const readers = Array.from({ length: 40 }, async (_, reader) => {
    for await (const { type } of follow(host.app, host.runs, run, 0, leave.signal)) last[reader] = type;
  });
  try {
    const sent: string[] = [];
    const pagesOf = (from: number) =>
      sent.slice(from).filter((text) => text.includes("from agent_events")).length;
    const looks = () => sent.filter((text) => /"last_event_id" from "agent_runs".*= any/.test(text)).length;
    const all = (type: string) => () => last.filter((one) => one === type).length;
    await sentDuring(async () => {
      await expect.poll(all("run.pending_approval"), { timeout: 20_000 }).toBe(readers.length);
      const from = sent.length;
      const before = looks();
      await expect.poll(looks, { timeout: 20_000 }).toBeGreaterThan(before + 2);
      // The first poll notifies the watchers once, because the run's state was unknown before.
      expect(pagesOf(from)).toBeLessThanOrEqual(2);
      await owner.post(`/v1/agents/runs/${run.id}/cancel`);
      await Promise.all(readers);
      expect(pagesOf(from)).toBeLessThan(10);
    }, sent);
    expect(new Set(last)).toEqual(new Set(["run.failed"]));
  } finally {
    leave.abort();
    await Promise.all(readers);
  }
});
