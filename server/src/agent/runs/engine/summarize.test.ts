/** Compaction by summary: the facts that are kept, the cost, and the recovery after a server is killed. */
import { randomBytes } from "node:crypto";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startModelServer, type Turn } from "#agent/testing/model-server.ts";
import { RunExecutor } from "./run-executor.ts";

const key = randomBytes(32);
const model = await startModelServer();
const host = await agentHost({ secrets: new SecretBox(key) });
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const context = { compact_at_tokens: 1000, keep_last_messages: 4 };
const filler = "word ".repeat(240);
let made = 0;

async function agent(change: object = {}): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const body = { name, config: { ...config, context, ...change } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

const isSummary = ({ messages }: Json): boolean =>
  String(messages[0].content).startsWith("You write the summary");
const toldIn = (body: Json): string => JSON.stringify(body.messages);

/** Imitates a model whose summaries keep codes such as ZX-42, and nothing else. */
function summarizer(other: Turn = { text: ["Noted."] }): (body: Json) => Turn {
  return (body) => {
    if (!isSummary(body)) return other;
    const codes = new Set(toldIn(body).match(/ZX-\d+/g));
    return { text: [`Codes: ${[...codes].join(" ")}.`], usage: { prompt_tokens: 100, completion_tokens: 7 } };
  };
}

async function say(name: string, input: string, session?: string, body: object = {}): Promise<Json> {
  const asked = { input, ...(session === undefined ? {} : { session_id: session }), ...body };
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, asked);
  return json;
}

async function eventsOf(runId: string): Promise<Json[]> {
  const url = `${host.baseUrl}/v1/agents/runs/${runId}/stream`;
  return (await readFrames(url, { token: owner.token })).frames.map(({ data }) => data);
}

/** Invokes an agent eight times in one session. The first input contains a code. Returns the runs. */
async function eightTurns(name: string): Promise<Json[]> {
  const runs = [await say(name, `The code is ZX-42. ${filler}`)];
  for (let turn = 1; turn < 8; turn += 1) runs.push(await say(name, `${turn} ${filler}`, runs[0].session_id));
  for (const { status } of runs) expect(status).toBe("completed");
  return runs;
}

test("keeps a fact of the first turn in the eighth request, and lists the summary as a message", async () => {
  model.script(summarizer());
  const runs = await eightTurns(await agent());
  const asked = model.asked.filter((body) => !isSummary(body));
  const last = asked.at(-1)!;
  expect(toldIn(last)).toContain("ZX-42");
  // The request has fewer tokens than the whole conversation, and includes the last question.
  expect(toldIn(last).length).toBeLessThan(toldIn(asked[0]!).length * 4);
  expect(last.messages.at(-1).content).toBe(`7 ${filler}`);
  const summaries = model.asked.filter(isSummary);
  expect(summaries.length).toBeGreaterThan(1);
  // A new summary begins with the previous summary, and covers more than one exchange.
  expect(toldIn(summaries.at(-1)!)).toContain("Codes: ZX-42.");
  expect(summaries.length).toBeLessThan(7);
  for (const body of summaries) expect(body.tools).toBeUndefined();

  const { session_id } = runs[0];
  const path = `/v1/agents/agent-${made}/sessions/${session_id}/messages`;
  const { items } = (await owner.get(path)).json;
  const found = items.filter(({ kind }: Json) => kind === "summary");
  expect(found).toHaveLength(summaries.length);
  expect(found.at(-1).content[0].text).toMatch(/Codes: ZX-42\.$/);
  expect(found.map(({ summarizes_to, seq }: Json) => summarizes_to < seq)).not.toContain(false);
  expect(items.filter(({ kind }: Json) => kind === "input")).toHaveLength(8);
});

test("counts a summary as a step with its tokens, and emits its size but not its text", async () => {
  model.script(summarizer());
  const runs = await eightTurns(await agent());
  const all = await Promise.all(runs.map(({ run_id }) => eventsOf(run_id)));
  const place = all.findIndex((events) => events.some(({ type }) => type === "context.compacted"));
  const events = all[place]!;
  expect(events.find(({ type }) => type === "context.compacted")).toMatchObject({
    left_out: expect.any(Number),
    summary_tokens: 7,
  });
  expect(events.filter(({ type }) => type === "step.completed")).toMatchObject([
    { step: 1, purpose: "summary", tokens: { total: 107 } },
    { step: 2, tokens: { total: 15 } },
  ]);
  expect(JSON.stringify(events)).not.toContain("Codes:");
  const run = (await owner.get(`/v1/agents/runs/${runs[place].run_id}`)).json;
  expect(run).toMatchObject({ steps: 2, output: "Noted.", tokens: { input: 110, output: 12 } });
  const { totals } = (await owner.get(`/v1/agents/agent-${made}/usage`)).json;
  const summaries = model.asked.filter(isSummary).length;
  expect(totals.total_tokens).toBe(8 * 15 + summaries * 107);
  // The UI format shows one step, without the summary.
  const ui = await readFrames(`${host.baseUrl}/v1/agents/runs/${run.run_id}/stream?format=ui`, {
    token: owner.token,
  });
  expect(ui.frames.filter(({ data }) => data.type === "start-step")).toHaveLength(1);
});

test("counts summaries towards the run's limits for steps and tokens", async () => {
  model.script(summarizer());
  const name = await agent({ limits: { max_steps: 1 } });
  const messages = Array.from({ length: 8 }, (_, n) => ({
    role: n % 2 === 0 ? "user" : "assistant",
    content: `${n} ${filler}`,
  }));
  expect(await say(name, "Hi", undefined, { messages })).toMatchObject({ error_code: "limit_steps" });
  expect(model.asked.map(isSummary)).toEqual([true]);
});

test.each([
  ["refuses", { status: 400, error: "no summaries here" }, 1],
  // An empty summary is stored as a step with its tokens.
  ["returns no text", { text: [""] }, 2],
  ["is busy", { status: 429, error: "later" }, 1],
])(
  "drops messages when the summarizing model %s, emits the reason, and summarizes the messages later",
  async (_, failure, steps) => {
    const name = await agent();
    const messages = Array.from({ length: 8 }, (_, n) => ({
      role: n % 2 === 0 ? "user" : "assistant",
      content: `${n} ZX-7 ${filler}`,
    }));
    model.script((body) => (isSummary(body) ? failure : { text: ["Noted."] }));
    const first = await say(name, "Hi", undefined, { messages });
    expect(first).toMatchObject({ status: "completed", output: "Noted." });
    const [compacted, ...more] = (await eventsOf(first.run_id)).filter(
      ({ type }) => type === "context.compacted",
    );
    expect(more).toEqual([]);
    expect(compacted).toMatchObject({
      left_out: expect.any(Number),
      summary_error: expect.stringMatching(/./),
    });
    expect(compacted).not.toHaveProperty("summary_tokens");
    expect((await owner.get(`/v1/agents/runs/${first.run_id}`)).json).toMatchObject({
      steps,
      tokens: { total: steps * 15 },
    });
    model.script(summarizer());
    await say(name, "And now?", first.session_id);
    expect(toldIn(model.asked.at(-1)!)).toContain("Codes: ZX-7.");
  },
);

test("requests no second summary in a run whose first summary failed", async () => {
  const name = await agent({ memory: {} });
  const messages = Array.from({ length: 8 }, (_, n) => ({
    role: n % 2 === 0 ? "user" : "assistant",
    content: `${n} ${filler}`,
  }));
  const save = { calls: [{ name: "memory_save", arguments: '{"key":"city","value":"Bremen"}' }] };
  let steps = 0;
  model.script((body) => {
    if (isSummary(body)) return { status: 400, error: "no summaries here" };
    steps += 1;
    return steps < 3 ? save : { text: ["Saved."] };
  });
  const run = await say(name, "Save it.", undefined, { messages });
  expect(run).toMatchObject({ status: "completed", output: "Saved." });
  expect(model.asked.map(isSummary)).toEqual([true, false, false, false]);
  const compacted = (await eventsOf(run.run_id)).filter(({ type }) => type === "context.compacted");
  expect(compacted).toHaveLength(3);
  for (const event of compacted) expect(event).toMatchObject({ summary_error: expect.stringMatching(/./) });
});

test("sends pinned facts in every request, even when messages are dropped", async () => {
  model.script(summarizer());
  await eightTurns(await agent({ context: { ...context, compaction: "drop", pin: ["Ship on Friday."] } }));
  expect(model.asked.some(isSummary)).toBe(false);
  expect(toldIn(model.asked.at(-1)!)).not.toContain("ZX-42");
  for (const { messages } of model.asked)
    expect(messages[0]).toMatchObject({ role: "system", content: "Pinned facts:\n- Ship on Friday." });
});

test("drops messages without a summary for a version that was published before summaries existed", async () => {
  const name = await agent();
  const stored = host.app.db.updateTable("agent_versions");
  const { json } = await owner.get(`/v1/agents/${name}/versions/1`);
  expect(json.config.context.compaction).toBe("summarize");
  const { compaction: _, ...old } = json.config.context;
  const { id } = (await owner.get(`/v1/agents/${name}`)).json;
  await stored
    .set({ config: JSON.stringify({ ...json.config, context: old }) as never })
    .where("agent_id", "=", id)
    .execute();
  model.script(summarizer());
  await eightTurns(name);
  expect(model.asked.some(isSummary)).toBe(false);
});

test.each(["agent.summary.answered", "agent.summary.committed", "agent.step.begins"])(
  "writes one summary and completes the run after a server is killed at %s",
  async (point) => {
    const idle = await agentHost({ secrets: new SecretBox(key), isIdle: true });
    const person = await idle.person();
    const own = { ...(await modelConfig(person, model.url)), context };
    await person.post("/v1/agents", { name: "crashing", config: own });
    model.script(summarizer());
    const messages = Array.from({ length: 8 }, (_, n) => ({
      role: n % 2 === 0 ? "user" : "assistant",
      content: `${n} ZX-9 ${filler}`,
    }));
    const { json } = await person.post("/v1/agents/crashing/invoke", { input: "Go.", messages, wait_s: 0 });
    await idle.app.db.updateTable("agent_runs").set({ process_id: null }).execute();
    expect(await runUntilKilled(idle.connection, key, point)).toBe("SIGKILL");
    const next = new RunExecutor(idle.app, { hostId: "crashing", pauseMs: 5 });
    try {
      await next.start();
      await next.waitForOutcome(json.run_id, 20_000);
    } finally {
      await next.stop();
    }
    const run = (await person.get(`/v1/agents/runs/${json.run_id}`)).json;
    expect(run).toMatchObject({ status: "completed", steps: 2, tokens: { total: 107 + 15 } });
    const path = `/v1/agents/crashing/sessions/${json.session_id}/messages`;
    const { items } = (await person.get(path)).json;
    expect(items.filter(({ kind }: Json) => kind === "summary")).toHaveLength(1);
    expect(toldIn(model.asked.at(-1)!)).toContain("Codes: ZX-9.");
  },
);
