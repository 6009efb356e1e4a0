/** Limits the size of a server's list of tools for storage, and keeps only tools with a usable schema. */
import { storableText } from "../storable.ts";
import { findSchemaFault } from "../json-schema.ts";
import type { CachedTool } from "./cached-tool.ts";
import type { ListedTool } from "./connection.ts";

const toolsMax = 200;
const allMaxBytes = 1024 ** 2;
const nameMaxCharacters = 200;
const descriptionMaxCharacters = 4_000;
/**
 * Maximum time for the checks of one list. A workspace's schemas are checked in sequence, so a hostile list must not
 * delay the workspace's other lists.
 */
const checksMaxMs = 3_000;

export interface ToolList {
  tools: CachedTool[];
  /** Names of the tools that are left out, each with the reason. */
  leftOut: { name: string; why: string }[];
}

/** Tool that is added to the tools of a server with resources, unless the server has a tool of this name. */
const resourceTool: CachedTool = {
  name: "read_resource",
  description:
    "Reads a resource of the server by a URI that results of its other tools contain. Lists the resources if `uri` is absent.",
  inputSchema: {
    type: "object",
    properties: { uri: { type: "string", minLength: 1, maxLength: 2000 } },
    additionalProperties: false,
  },
  isRepeatable: true,
  readsResources: true,
};

export function withResourceTool({ tools, leftOut }: ToolList): ToolList {
  const isTaken = tools.some(({ name }) => name === resourceTool.name);
  return { tools: isTaken ? tools : [...tools, resourceTool], leftOut };
}

export async function boundTools(owner: string, listed: readonly ListedTool[]): Promise<ToolList> {
  const tools: CachedTool[] = [];
  const leftOut: ToolList["leftOut"] = [];
  const names = new Set<string>();
  const endMs = performance.now() + checksMaxMs;
  let bytes = 0;
  for (const one of listed) {
    const tool = toKept(one);
    bytes += JSON.stringify(tool).length;
    const why =
      one.name.length === 0 || one.name.length > nameMaxCharacters
        ? `its name is not of 1 to ${nameMaxCharacters} characters`
        : names.has(one.name)
          ? "it is listed twice"
          : tools.length >= toolsMax || bytes > allMaxBytes
            ? `a toolset has at most ${toolsMax} tools of ${allMaxBytes} bytes in all`
            : performance.now() > endMs
              ? "there was no time to check its schema"
              : await findSchemaFault(owner, tool.inputSchema).then((text) => text && `its schema ${text}`);
    names.add(one.name);
    if (why === undefined) tools.push(tool);
    else leftOut.push({ name: one.name.slice(0, nameMaxCharacters), why });
  }
  return { tools, leftOut };
}

function toKept({ name, title, description, inputSchema, annotations }: ListedTool): CachedTool {
  return {
    name: storableText(name),
    description: storableText(description || title || annotations?.title || "").slice(
      0,
      descriptionMaxCharacters,
    ),
    inputSchema,
    isRepeatable: annotations?.readOnlyHint === true || annotations?.idempotentHint === true,
  };
}
