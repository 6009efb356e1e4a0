/** Selects the tools of toolsets that a config grants to an agent. */
import type { App } from "#app.ts";
import type { AgentConfig } from "#agent/agents/config.ts";
import type { Tool, ToolCall, ToolPolicy, Tools, ToolUser } from "#agent/tools/tool.ts";
import { callHttp } from "./http-tool.ts";
import { type KnownTool, knownTools } from "./tool-lists.ts";
import { callMcp } from "./mcp-tool.ts";
import { signInTool, readIfStale, findUnavailability } from "./mcp-state.ts";
import { type ToolsetRow, toolsetsByIds } from "../store.ts";

type Use = AgentConfig["toolsets"][number];

export async function toolsetTools(app: App, user: ToolUser): Promise<Tools> {
  const { workspaceId, config } = user;
  const ids = config.toolsets.map(({ toolset_id }) => toolset_id);
  const rows = ids.length === 0 ? [] : await toolsetsByIds(app.db, workspaceId, ids);
  const known = new Map(rows.map((row) => [row.id, row]));
  const found = await Promise.all(
    config.toolsets.map(async (use): Promise<Tools> => {
      const row = known.get(use.toolset_id);
      if (!row) return { tools: [], unavailable: [unavailable(use, "it does not exist any more")] };
      return row.kind === "http"
        ? { tools: toolsOf(app, row, use, user), unavailable: [] }
        : ofServer(app, row, use, user);
    }),
  );
  return {
    tools: found.flatMap(({ tools }) => tools),
    unavailable: found.flatMap(({ unavailable }) => unavailable),
  };
}

/** Returns the tools of an MCP server as they were last read. Only a required server is checked for reachability. */
async function ofServer(app: App, stored: ToolsetRow, use: Use, user: ToolUser): Promise<Tools> {
  const row = await readIfStale(app, stored, user.endUserId);
  const why = await findUnavailability(app, row, {
    endUserId: user.endUserId,
    isRequired: use.required,
    elicitation: use.elicitation,
  });
  const tools = toolsOf(app, row, use, user);
  if (tools.length === 0 && row.auth_type === "oauth") tools.push(signInTool(app, row, user.endUserId));
  return { tools, unavailable: why === undefined ? [] : [unavailable(use, why)] };
}

function toolsOf(app: App, row: ToolsetRow, use: Use, { config, endUserId }: ToolUser): Tool[] {
  return knownTools(row)
    .filter(({ original }) => use.allow.includes("*") || use.allow.includes(original))
    .map((tool) => ({
      name: `${row.name}__${tool.name}`,
      description: tool.description,
      parameters: tool.inputSchema,
      toolsetId: row.id,
      policy: policyOf(use, tool, config),
      isRepeatable: tool.isRepeatable,
      call: (call: ToolCall) =>
        tool.http
          ? callHttp(app, row, tool.http, endUserId, call)
          : callMcp(app, row, tool, {
              endUserId,
              call,
              elicitation: use.elicitation,
              questionSeconds: use.elicitation_seconds,
            }),
    }));
}

function policyOf(use: Use, { original, policy }: KnownTool, { approvals }: AgentConfig): ToolPolicy {
  return use.tools?.[original]?.policy ?? use.policy ?? policy ?? approvals.default;
}

function unavailable({ toolset_id, required }: Use, why: string): Tools["unavailable"][number] {
  return { id: toolset_id, isRequired: required, why };
}
