import type { World } from "../world.ts";
import { agent } from "./agent.ts";
import type { Cases } from "./case.ts";

const person = async (world: World) => ({ ...(await agent(world)), end_user_id: "ada" });
const unknown = { agent: "agt_doesnotexist", end_user_id: "ada" };

export const agentMemoryCases: Cases = {
  eraseAgentEndUser: { success: async (world) => ({ params: await person(world) }), status: 200, unknown },
  getAgentMemory: { success: async (world) => ({ params: await person(world) }), unknown },
  forgetAgentMemory: {
    success: async (world) => ({ params: await person(world), query: "key=city" }),
    status: 200,
    unknown,
  },
};
