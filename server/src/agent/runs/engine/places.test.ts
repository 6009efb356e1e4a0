/** Fair distribution of a process's slots among workspaces. */
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig, type Person } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { RunExecutor } from "./run-executor.ts";

const model = await startModelServer();
const host = await agentHost({ isIdle: true });

async function runsOf(person: Person, count: number): Promise<string[]> {
  await person.post("/v1/agents", { name: "many", config: await modelConfig(person, model.url) });
  const asked = Array.from({ length: count }, () =>
    person.post("/v1/agents/many/invoke", { input: person.userId, wait_s: 0 }),
  );
  return (await Promise.all(asked)).map(({ json }) => json.run_id as string);
}

async function statuses(person: Person): Promise<string[]> {
  const { json } = await person.get("/v1/agents/runs");
  return json.items.map(({ status }: Json) => status as string).toSorted();
}

test("limits the concurrent runs of a busy workspace, so that other workspaces do not wait", async () => {
  const [busy, other] = [await host.person(), await host.person()];
  const may = Promise.withResolvers<void>();
  model.script((body: Json) => ({
    text: ["Done."],
    ...(body.messages.at(-1).content === busy.userId ? { until: may.promise } : {}),
  }));
  const many = await runsOf(busy, 7);
  const [one] = await runsOf(other, 1);
  const runs = new RunExecutor(host.app, { pauseMs: 5, maxPerWorkspace: 2 });
  await runs.start();
  try {
    await runs.waitForOutcome(one!, 20_000);
    expect(await statuses(other)).toEqual(["completed"]);
    await expect.poll(() => statuses(busy)).toEqual([...Array(5).fill("queued"), "running", "running"]);
    // A run that is submitted directly gets no slot either.
    runs.submit(many.at(-1)!);
    await runs.pollForOrphans();
    expect(model.asked.filter(({ messages }) => messages.at(-1).content === busy.userId)).toHaveLength(2);
    may.resolve();
    for (const id of many) await runs.waitForOutcome(id, 20_000);
    expect(await statuses(busy)).toEqual(Array(7).fill("completed"));
  } finally {
    may.resolve();
    await runs.stop();
  }
});

test("stops a suspended workspace's run before its next step, and continues the run after the suspension", async () => {
  const person = await host.person();
  const held: string[] = [];
  let asked = 0;
  model.script(() => {
    asked += 1;
    if (asked > 1) return { text: ["Done."] };
    held.push(person.workspaceId);
    return { calls: [{ name: "remember", arguments: JSON.stringify({ key: "k", value: "v" }) }] };
  });
  const config = await modelConfig(person, model.url);
  await person.post("/v1/agents", { name: "held", config });
  const { json } = await person.post("/v1/agents/held/invoke", { input: "go", wait_s: 0 });
  const runs = new RunExecutor(host.app, { pauseMs: 5, heldWorkspaces: () => held });
  await runs.start();
  try {
    const releasedRun = () =>
      host.app.db.selectFrom("agent_runs").select(["resumed", "process_id"]).where("id", "=", json.run_id);
    await expect.poll(() => releasedRun().executeTakeFirst()).toEqual({ resumed: 1, process_id: null });
    expect(await runs.pollForOrphans()).toBe(0);
    expect(asked).toBe(1);
    held.length = 0;
    await runs.pollForOrphans();
    await runs.waitForOutcome(json.run_id, 20_000);
    expect(await statuses(person)).toEqual(["completed"]);
    expect(asked).toBe(2);
  } finally {
    await runs.stop();
  }
});
