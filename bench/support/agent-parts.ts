/** Parts of the agent benchmarks: a credential for the scripted model, and a toolset with one tool. */
import type { Api } from "./api.ts";

export interface Parts {
  /** Value of the field `model` in an agent's config. */
  model: { provider: string; id: string; credential_id: string };
  toolset_id: string;
}

/** Makes the parts. The tool is `desk__<name>`, without parameters. */
export async function makeParts(
  api: Api,
  given: { modelUrl: string; toolsUrl: string; tool: { name: string; method: "GET" | "POST" } },
): Promise<Parts> {
  const { modelUrl, toolsUrl, tool } = given;
  const credential = await api.json<{ id: string }>("POST", "/v1/model-credentials", 201, {
    provider: "openai_compatible",
    name: "scripted",
    api_key: "none",
    base_url: modelUrl,
  });
  const toolset = await api.json<{ id: string }>("POST", "/v1/agent-toolsets", 201, {
    name: "desk",
    kind: "http",
    url: toolsUrl,
    http_tools: [{ ...tool, description: "Does it.", path: `/${tool.name}`, parameters: { type: "object" } }],
  });
  return {
    model: { provider: "openai_compatible", id: "scripted", credential_id: credential.id },
    toolset_id: toolset.id,
  };
}
