/**
 * All tools of an agent, by their name for models. If two sources use the same name, the tool of the first source is
 * used.
 */
import type { App } from "#app.ts";
import { memoryTools } from "../memory/tools.ts";
import { toolsetTools } from "../toolsets/tools/tools-of-config.ts";
import { machineTools } from "../vm/tools/tools.ts";
import { workerTools } from "../workers/tools.ts";
import type { Tool, Tools, ToolSource, ToolUser } from "./tool.ts";

const sources: readonly ToolSource[] = [machineTools, workerTools, memoryTools, toolsetTools];

export async function toolsOf(
  app: App,
  user: ToolUser,
): Promise<{ tools: Map<string, Tool>; unavailable: Tools["unavailable"] }> {
  const found = await Promise.all(sources.map((source) => source(app, user)));
  const tools = new Map<string, Tool>();
  for (const tool of found.flatMap((of) => of.tools)) if (!tools.has(tool.name)) tools.set(tool.name, tool);
  return { tools, unavailable: found.flatMap(({ unavailable }) => unavailable) };
}
