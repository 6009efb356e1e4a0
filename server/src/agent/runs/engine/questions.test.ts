/**
 * Open questions of tools' servers across processes: after a kill or a stop, and with answers that another process
 * accepts.
 */
import { randomBytes, randomUUID } from "node:crypto";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { rowsWith } from "#agent/testing/whole-database.ts";
import { recoverQuestions } from "./questions.ts";
import { RunExecutor } from "./run-executor.ts";

const key = randomBytes(32);
const model = await startModelServer();
const server = await startMcpServer();
// This host takes requests and executes no run, so another process than the question's accepts each answer.
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true });
const owner = await host.person();
let answers: Json[] = [];
server.generation = "2026-07-28";
server.tools = [
  { name: "book", inputSchema: { type: "object" } },
  { name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } },
];
server.call = ({ inputResponses }) => {
  if (inputResponses) {
    answers.push(inputResponses.question);
    return { content: [{ type: "text", text: "Done." }] };
  }
  const requestedSchema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const params = { mode: "form", message: "Which city?", requestedSchema };
  return {
    resultType: "input_required",
    requestState: "s",
    inputRequests: { question: { method: "elicitation/create", params } },
  };
};
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "desk",
  kind: "mcp",
  url: server.url,
});
const config = {
  ...(await modelConfig(owner, model.url)),
  toolsets: [{ toolset_id: toolset.id, elicitation: "person" }],
};
await owner.post("/v1/agents", { name: "asking", config });

const run = async (id: string): Promise<Json> => (await owner.get(`/v1/agents/runs/${id}`)).json;

async function invoke(tool: string): Promise<string> {
  answers = [];
  const calls = [{ name: `desk__${tool}`, arguments: "{}" }];
  model.script(({ messages }: Json) => (messages.at(-1).role === "tool" ? { text: ["Done."] } : { calls }));
  const { json } = await owner.post("/v1/agents/asking/invoke", { input: "Go.", wait_s: 0 });
  // Sets the state after the process that acquired the run committed the acquisition.
  await sql`update agent_runs set process_id = null where id = ${json.run_id}`.execute(host.app.db);
  return json.run_id as string;
}

/** Executes runs during `during`, and then stops gracefully. */
async function working(
  during: () => Promise<void>,
  options: { maxPerWorkspace?: number } = {},
): Promise<void> {
  const runs = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5, ...options });
  try {
    await runs.start();
    await during();
  } finally {
    await runs.stop();
  }
}

async function question(runId: string): Promise<Json> {
  await expect.poll(async () => (await run(runId)).approval).toMatchObject({ kind: "elicitation" });
  return (await run(runId)).approval;
}

const answer = async (runId: string, { request_id: id }: Json) =>
  (
    await owner.post(`/v1/agents/runs/${runId}/approvals/${id}`, {
      decision: "approve",
      content: { city: "Bremen" },
    })
  ).json;

const becomes = (runId: string, status: string) =>
  expect.poll(async () => (await run(runId)).status).toBe(status);

async function outcomes(runId: string): Promise<Json[]> {
  const { rows } = await sql<Json>`select data -> 'outcome' as outcome from agent_events
    where run_id = ${runId} and type = 'approval.resolved' order by seq`.execute(host.app.db);
  return rows.map(({ outcome }) => outcome);
}

test("continues a call when another process receives the answer to its question", async () => {
  const runId = await invoke("book");
  await working(async () => {
    const asked = await question(runId);
    expect((await run(runId)).status).toBe("pending_approval");
    await answer(runId, asked);
    await becomes(runId, "completed");
  });
  expect(await run(runId)).toMatchObject({ attempts: 1, tools_called: [{ status: "completed" }] });
  expect(answers).toMatchObject([{ action: "accept", content: { city: "Bremen" } }]);
  expect(await outcomes(runId)).toEqual(["approved"]);
});

test("repeats a question after a kill if the call is repeatable", async () => {
  const runId = await invoke("look");
  expect(await runUntilKilled(host.connection, key, "agent.question.raised")).toBe("SIGKILL");
  const lost = await question(runId);
  await working(async () => {
    await expect
      .poll(async () => (await run(runId)).approval?.request_id ?? lost.request_id)
      .not.toBe(lost.request_id);
    await answer(runId, await question(runId));
    await becomes(runId, "completed");
  });
  expect(await run(runId)).toMatchObject({ attempts: 2, tools_called: [{ status: "completed" }] });
  expect(answers).toHaveLength(1);
  expect(await outcomes(runId)).toEqual(["cancelled", "approved"]);
});

test.each(["is not answered", "is answered after the kill"])(
  "reports an unknown outcome to the model if the server is killed and the question %s",
  async (how) => {
    const runId = await invoke("book");
    expect(await runUntilKilled(host.connection, key, "agent.question.raised")).toBe("SIGKILL");
    const asked = await question(runId);
    if (how !== "is not answered") expect((await answer(runId, asked)).status).toBe("running");
    await working(() => becomes(runId, "completed"));
    expect(await run(runId)).toMatchObject({ approvals: [], tools_called: [{ status: "unknown" }] });
    // The answer was not delivered, and no table contains it.
    expect(await rowsWith(host.app.db, ["Bremen"])).toEqual(new Map());
    expect(answers).toEqual([]);
    expect(await outcomes(runId)).toEqual([how === "is not answered" ? "cancelled" : "approved"]);
  },
);

test("a stopping server withdraws an open question, and another server repeats the question", async () => {
  const runId = await invoke("look");
  await working(async () => void (await question(runId)));
  const { rows } = await sql<Json>`select status, process_id from agent_runs where id = ${runId}`.execute(
    host.app.db,
  );
  expect(rows).toEqual([{ status: "running", process_id: null }]);
  expect(await outcomes(runId)).toEqual(["cancelled"]);
  await working(async () => {
    await answer(runId, await question(runId));
    await becomes(runId, "completed");
  });
  expect(await run(runId)).toMatchObject({ tools_called: [{ status: "completed" }] });
});

test("keeps the run's slot in the plan while a question of the run is open", async () => {
  const runId = await invoke("book");
  await working(
    async () => {
      const asked = await question(runId);
      const { rows } = await sql<Json>`select here::int, in_flight::int
        from agent_counts(${owner.workspaceId}, ${host.app.jobs.processId})`.execute(host.app.db);
      expect(rows).toEqual([{ here: 1, in_flight: 0 }]);
      const next = await invoke("book");
      // The wait is longer than two polls for waiting runs.
      await new Promise((resolve) => setTimeout(resolve, 2_500));
      expect((await run(next)).status).toBe("queued");
      await answer(runId, asked);
      await becomes(runId, "completed");
      await answer(next, await question(next));
      await becomes(next, "completed");
    },
    { maxPerWorkspace: 1 },
  );
});

test("does not recover a question whose process is alive", async () => {
  const runId = await invoke("book");
  await working(async () => {
    const asked = await question(runId);
    const other = { processId: randomUUID(), hostId: "other", executing: [] };
    expect(await recoverQuestions(host.app, other)).toEqual([]);
    await answer(runId, asked);
    await becomes(runId, "completed");
  });
});

test("erases the answer to a question if the run is cancelled before its call continues", async () => {
  const runId = await invoke("book");
  expect(await runUntilKilled(host.connection, key, "agent.question.raised")).toBe("SIGKILL");
  await answer(runId, await question(runId));
  expect((await rowsWith(host.app.db, ["Bremen"])).size).toBe(1);
  await owner.post(`/v1/agents/runs/${runId}/cancel`);
  expect(await rowsWith(host.app.db, ["Bremen"])).toEqual(new Map());
  expect(answers).toEqual([]);
});

test("resumes a run that was cancelled with an open question, and repeats its call only if repeatable", async () => {
  for (const [tool, status] of [
    ["look", "completed"],
    ["book", "unknown"],
  ] as const) {
    const runId = await invoke(tool);
    await working(async () => {
      const asked = await question(runId);
      await owner.post(`/v1/agents/runs/${runId}/cancel`);
      await becomes(runId, "failed");
      await owner.post(`/v1/agents/runs/${runId}/resume`);
      if (tool === "look") await answer(runId, await question(runId));
      await becomes(runId, "completed");
      const late = await owner.post(`/v1/agents/runs/${runId}/approvals/${asked.request_id}`, {
        decision: "approve",
        content: { city: "Kiel" },
      });
      expect(late.status).toBe(404);
    });
    expect(await run(runId)).toMatchObject({ tools_called: [{ status }] });
    expect(answers.map(({ content }) => content)).toEqual(tool === "look" ? [{ city: "Bremen" }] : []);
  }
});
