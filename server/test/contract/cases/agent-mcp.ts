/** Cases of toolsets of MCP servers. */
import type { World } from "../world.ts";
import type { Cases } from "./case.ts";

let made = 0;

/** Creates a toolset. No server listens at its address, which a create does not check. */
async function toolset(world: World): Promise<{ toolset_id: string }> {
  const { status, json, text } = await world.call("POST", "/v1/agent-toolsets", {
    token: world.owner.token,
    body: { name: `server-${(made += 1)}`, kind: "mcp", url: "http://127.0.0.1:9/mcp" },
  });
  if (status !== 201) throw new Error(`no toolset: ${text}`);
  return { toolset_id: (json as { id: string }).id };
}

export const agentMcpCases: Cases = {
  listAgentToolsetCatalog: { success: () => ({}) },
  refreshAgentToolset: {
    success: async (world) => ({ params: await toolset(world) }),
    unknown: { toolset_id: "tst_doesnotexist" },
    status: 200,
  },
};
