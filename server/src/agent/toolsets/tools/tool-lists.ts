/** Known tools of a toolset of either kind, with their names and descriptions. */
import { modelNames } from "#agent/mcp/names.ts";
import type { HttpTool, ToolOverride } from "./tool-schema.ts";
import type { ToolsetRow } from "../store.ts";

export interface KnownTool {
  /** Name in the tool's definition, or at the MCP server. Configs and overrides use this name. */
  original: string;
  /** Name for models: the toolset's name, `__` and the tool's name. */
  name: string;
  description: string;
  inputSchema: Record<string, unknown>;
  policy: ToolOverride["policy"];
  isRepeatable: boolean;
  /** True for Kontor's own tool that reads resources of the server. */
  readsResources: boolean;
  /** Definition of an HTTP tool. Null for a tool of an MCP server. */
  http: HttpTool | null;
}

export function knownTools({
  name,
  kind,
  http_tools,
  tools_cached,
  tool_overrides,
}: ToolsetRow): KnownTool[] {
  const tools =
    kind === "http"
      ? http_tools.map(ofHttp)
      : tools_cached.map((tool) => ({ ...tool, readsResources: tool.readsResources ?? false, http: null }));
  const chosen = new Set(Object.values(tool_overrides).flatMap((override) => override.name ?? []));
  const names =
    kind === "http"
      ? new Map(tools.map((tool) => [tool.name, tool.name]))
      : modelNames(
          name,
          tools.map((tool) => tool.name),
          chosen,
        );
  return tools.map(({ name: original, description, inputSchema, isRepeatable, readsResources, http }) => {
    const override = tool_overrides[original];
    return {
      original,
      name: override?.name ?? names.get(original) ?? original,
      description: override?.description ?? description,
      inputSchema,
      policy: override?.policy,
      isRepeatable,
      readsResources,
      http,
    };
  });
}

function ofHttp(http: HttpTool) {
  const { name, description, parameters, method } = http;
  const isRepeatable = method === "GET";
  return { name, description, inputSchema: parameters, isRepeatable, readsResources: false, http };
}
