import type { World } from "../world.ts";
import { agentConnectionCases } from "./agent-connections.ts";
import type { Cases } from "./case.ts";

let made = 0;

async function credential(world: World): Promise<string> {
  const { status, json, text } = await world.call("POST", "/v1/model-credentials", {
    token: world.owner.token,
    body: credentialBody,
  });
  if (status !== 201) throw new Error(`no credential: ${text}`);
  return (json as { id: string }).id;
}

/** Body of a credential. No server listens at its address, and no call reaches it. */
const credentialBody = {
  provider: "openai_compatible",
  name: "local",
  api_key: "none",
  base_url: "http://127.0.0.1:9/v1",
};

/** A single credential for all cases, because an account has at most a hundred. */
const known = new WeakMap<World, Promise<string>>();

async function config(world: World): Promise<object> {
  if (!known.has(world)) known.set(world, credential(world));
  return { model: { provider: "openai_compatible", id: "m", credential_id: await known.get(world) } };
}

export async function agent(world: World): Promise<{ agent: string }> {
  const { status, json, text } = await world.call("POST", "/v1/agents", {
    token: world.owner.token,
    body: { name: `case-${(made += 1)}`, config: await config(world) },
  });
  if (status !== 201) throw new Error(`no agent: ${text}`);
  return { agent: (json as { id: string }).id };
}

/**
 * Ends the sessions of all waiting runs, because no process executes runs in these tests and a plan limits the number
 * of waiting runs.
 */
export async function endWaiting(world: World): Promise<void> {
  const { token } = world.owner;
  const { json } = await world.call("GET", "/v1/agents/runs?status=queued&limit=100", { token });
  for (const { agent: name, session_id } of (json as { items: { agent: string; session_id: string }[] })
    .items)
    await world.call("DELETE", `/v1/agents/${name}/sessions/${session_id}`, { token });
}

export async function run(world: World): Promise<{ agent: string; run_id: string; session_id: string }> {
  await endWaiting(world);
  const params = await agent(world);
  const { status, json, text } = await world.call("POST", `/v1/agents/${params.agent}/invoke`, {
    token: world.owner.token,
    body: { input: "Hi", wait_s: 0 },
  });
  if (status !== 202) throw new Error(`no run: ${text}`);
  const { run_id, session_id } = json as { run_id: string; session_id: string };
  return { ...params, run_id, session_id };
}

/** Makes a completed run, so that a stream of its events ends. */
async function endedRun(world: World): Promise<{ run_id: string }> {
  const { run_id } = await run(world);
  await world.call("POST", `/v1/agents/runs/${run_id}/cancel`, { token: world.owner.token });
  return { run_id };
}

/** Inserts a completed step, because no process executes runs in these tests. */
async function endedStep(world: World, runId: string): Promise<void> {
  const { db } = world.app;
  const { agent_id, end_user_id } = await db
    .selectFrom("agent_runs")
    .select(["agent_id", "end_user_id"])
    .where("id", "=", runId)
    .executeTakeFirstOrThrow();
  const prompt = { before: 0, last: 1, summary: null, remembered: null, at_most: null, tools: [] };
  const now = new Date();
  await db
    .insertInto("agent_steps")
    .values({
      run_id: runId,
      step: 1,
      agent_id,
      end_user_id,
      model: "m",
      finish_reason: "stop",
      input_tokens: 1,
      output_tokens: 1,
      cached_input_tokens: 0,
      reasoning_tokens: 0,
      prompt: JSON.stringify(prompt),
      started_at: now,
      finished_at: now,
    })
    .execute();
}

const toolsetBody = {
  kind: "http",
  url: "http://127.0.0.1:9",
  auth_secret: "none",
  http_tools: [
    { name: "find", description: "Finds.", method: "GET", path: "/find", parameters: { type: "object" } },
  ],
};

async function toolset(world: World): Promise<string> {
  const { status, json, text } = await world.call("POST", "/v1/agent-toolsets", {
    token: world.owner.token,
    body: { ...toolsetBody, name: `set-${(made += 1)}` },
  });
  if (status !== 201) throw new Error(`no toolset: ${text}`);
  return (json as { id: string }).id;
}

const sessionOf = ({ agent: name, session_id }: { agent: string; session_id: string }) => ({
  agent: name,
  session_id,
});

const unknown = { agent: "agt_doesnotexist" };

export const agentCases: Cases = {
  ...agentConnectionCases,
  listAgents: { success: () => ({}) },
  createAgent: {
    success: async (world) => ({ body: { name: `case-${(made += 1)}`, config: await config(world) } }),
  },
  getAgentsPaused: { success: () => ({}) },
  pauseAllAgents: { success: () => ({ body: { paused: false } }), status: 200 },
  getAgent: { success: async (world) => ({ params: await agent(world) }), unknown },
  updateAgent: {
    success: async (world) => ({ params: await agent(world), body: { description: "Helps." } }),
    unknown,
  },
  listAgentVersions: { success: async (world) => ({ params: await agent(world) }), unknown },
  publishAgentVersion: {
    success: async (world) => ({
      params: await agent(world),
      body: { config: await config(world), notes: "again", promote: ["prod"] },
    }),
    unknown,
  },
  getAgentVersion: {
    success: async (world) => ({ params: { ...(await agent(world)), version: "v1" } }),
    unknown,
  },
  putAgentAlias: {
    success: async (world) => ({
      params: { ...(await agent(world)), name: "staging" },
      body: { version: 1 },
    }),
    unknown,
  },

  deleteAgent: { success: async (world) => ({ params: await agent(world) }), unknown },
  deleteAgentVersion: {
    success: async (world) => {
      const params = await agent(world);
      const { status, text } = await world.call("POST", `/v1/agents/${params.agent}/versions`, {
        token: world.owner.token,
        body: { config: await config(world), promote: ["prod"] },
      });
      if (status !== 201) throw new Error(`no version: ${text}`);
      return { params: { ...params, version: "v1" } };
    },
    unknown: { agent: "agt_doesnotexist", version: "7" },
  },
  deleteAgentAlias: {
    success: async (world) => ({ params: { ...(await agent(world)), name: "prod" } }),
    unknown: { agent: "agt_doesnotexist", name: "nothing" },
  },

  invokeAgent: {
    success: async (world) => ({ params: await agent(world), body: { input: "Hi", wait_s: 0 } }),
    status: 202,
    unknown,
    // No process executes runs in these tests, so a caller that waits or follows would wait for long.
    keeps: ["wait_s", "stream"],
  },
  listAgentRuns: { success: () => ({}) },
  getAgentRun: {
    success: async (world) => ({ params: { run_id: (await endedRun(world)).run_id } }),
    unknown: { run_id: "run_doesnotexist" },
  },
  getAgentStepPrompt: {
    success: async (world) => {
      const { run_id } = await run(world);
      await endedStep(world, run_id);
      return { params: { run_id, step: "1" } };
    },
    unknown: { run_id: "run_doesnotexist" },
  },
  streamAgentRun: {
    success: async (world) => ({ params: { run_id: (await endedRun(world)).run_id } }),
    unknown: { run_id: "run_doesnotexist" },
  },
  cancelAgentRun: {
    success: async (world) => ({ params: { run_id: (await endedRun(world)).run_id } }),
    status: 200,
    unknown: { run_id: "run_doesnotexist" },
  },
  resumeAgentRun: {
    success: async (world) => ({ params: { run_id: (await endedRun(world)).run_id } }),
    status: 200,
    unknown: { run_id: "run_doesnotexist" },
  },
  listAgentSessions: { success: async (world) => ({ params: await agent(world) }), unknown },
  getAgentSession: {
    success: async (world) => ({ params: sessionOf(await run(world)) }),
    unknown: { session_id: "ses_doesnotexist", agent: "agt_doesnotexist" },
  },
  listAgentSessionMessages: {
    success: async (world) => ({ params: sessionOf(await run(world)) }),
    unknown: { session_id: "ses_doesnotexist", agent: "agt_doesnotexist" },
  },
  endAgentSession: {
    success: async (world) => ({ params: sessionOf(await run(world)) }),
    unknown: { session_id: "ses_doesnotexist", agent: "agt_doesnotexist" },
  },
  getAgentUsage: { success: async (world) => ({ params: await agent(world) }), unknown },

  listAgentToolsets: { success: () => ({}) },
  createAgentToolset: {
    success: () => ({ body: { ...toolsetBody, name: `set-${(made += 1)}` } }),
    keeps: ["url"],
  },
  updateAgentToolset: {
    success: async (world) => ({
      params: { toolset_id: await toolset(world) },
      body: { auth_secret: "another" },
    }),
    keeps: ["url"],
    unknown: { toolset_id: "tst_doesnotexist" },
  },
  deleteAgentToolset: {
    success: async (world) => ({ params: { toolset_id: await toolset(world) } }),
    unknown: { toolset_id: "tst_doesnotexist" },
  },

  listModelCredentials: { success: () => ({}) },
  createModelCredential: { success: () => ({ body: credentialBody }), keeps: ["base_url"] },
  updateModelCredential: {
    success: async (world) => ({ params: { id: await credential(world) }, body: { name: "renamed" } }),
    unknown: { id: "mcr_doesnotexist" },
  },
  deleteModelCredential: {
    success: async (world) => ({ params: { id: await credential(world) } }),
    unknown: { id: "mcr_doesnotexist" },
  },
};
