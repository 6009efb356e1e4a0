import type { World } from "../world.ts";
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

/** Nothing listens there, and nobody calls. */
const credentialBody = {
  provider: "openai_compatible",
  name: "local",
  api_key: "none",
  base_url: "http://127.0.0.1:9/v1",
};

/** One for all cases: an account has at most a hundred. */
const known = new WeakMap<World, Promise<string>>();

async function config(world: World): Promise<object> {
  if (!known.has(world)) known.set(world, credential(world));
  return { model: { provider: "openai_compatible", id: "m", credential_id: await known.get(world) } };
}

async function agent(world: World): Promise<{ agent: string }> {
  const { status, json, text } = await world.call("POST", "/v1/agents", {
    token: world.owner.token,
    body: { name: `case-${(made += 1)}`, config: await config(world) },
  });
  if (status !== 201) throw new Error(`no agent: ${text}`);
  return { agent: (json as { id: string }).id };
}

const unknown = { agent: "agt_doesnotexist" };

export const agentCases: Cases = {
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

  listModelCredentials: { success: () => ({}) },
  createModelCredential: { success: () => ({ body: credentialBody }), keeps: ["base_url"] },
  deleteModelCredential: {
    success: async (world) => ({ params: { id: await credential(world) } }),
    unknown: { id: "mcr_doesnotexist" },
  },
};
