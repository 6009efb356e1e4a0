import type { World } from "../world.ts";
import type { Cases } from "./case.ts";
import { agent, endWaiting } from "./agent.ts";

const unknownAgent = { agent: "agt_doesnotexist" };

async function makeTrigger(world: World, what: "schedules" | "webhooks", body: object) {
  const params = await agent(world);
  const { status, json, text } = await world.call("POST", `/v1/agents/${params.agent}/${what}`, {
    token: world.owner.token,
    body,
  });
  if (status !== 201) throw new Error(`no ${what}: ${text}`);
  return { ...params, made: json as { id: string; secret: string } };
}

async function schedule(world: World): Promise<{ agent: string; schedule_id: string }> {
  const { agent: of, made: one } = await makeTrigger(world, "schedules", {
    schedule: "daily",
    message: "Look.",
  });
  return { agent: of, schedule_id: one.id };
}

async function webhook(world: World): Promise<{ agent: string; webhook_id: string }> {
  const { agent: of, made: one } = await makeTrigger(world, "webhooks", { name: "forge" });
  return { agent: of, webhook_id: one.id };
}

const noSchedule = { ...unknownAgent, schedule_id: "sch_doesnotexist" };
const noWebhook = { ...unknownAgent, webhook_id: "agw_doesnotexist" };

export const agentTriggerCases: Cases = {
  listAgentSchedules: { success: async (world) => ({ params: await agent(world) }), unknown: unknownAgent },
  createAgentSchedule: {
    success: async (world) => ({
      params: await agent(world),
      body: { schedule: "weekdays@09:00", message: "Look.", timezone: "Europe/Berlin", name: "morning" },
    }),
    unknown: unknownAgent,
  },
  updateAgentSchedule: {
    success: async (world) => ({ params: await schedule(world), body: { schedule: "every 2h" } }),
    unknown: noSchedule,
  },
  deleteAgentSchedule: { success: async (world) => ({ params: await schedule(world) }), unknown: noSchedule },

  listAgentWebhooks: { success: async (world) => ({ params: await agent(world) }), unknown: unknownAgent },
  createAgentWebhook: {
    success: async (world) => ({
      params: await agent(world),
      body: { name: "forge", input_template: "{{body.title}}", daily_cap: 5 },
    }),
    unknown: unknownAgent,
  },
  updateAgentWebhook: {
    success: async (world) => ({ params: await webhook(world), body: { enabled: false } }),
    unknown: noWebhook,
  },
  rotateAgentWebhook: {
    success: async (world) => ({ params: await webhook(world) }),
    status: 200,
    unknown: noWebhook,
  },
  deleteAgentWebhook: { success: async (world) => ({ params: await webhook(world) }), unknown: noWebhook },
  receiveAgentWebhook: {
    success: async (world) => {
      await endWaiting(world);
      const { made: one } = await makeTrigger(world, "webhooks", { name: "forge" });
      return {
        params: { webhook_id: one.id },
        body: { title: "Broken" },
        headers: { authorization: `Bearer ${one.secret}` },
      };
    },
    isPublic: true,
  },
};
