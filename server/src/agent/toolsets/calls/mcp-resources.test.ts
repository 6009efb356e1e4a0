/** Resources and questions of MCP servers, and the status of a toolset whose server works again. */
import { afterEach, expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";

const model = await startModelServer();
const server = await startMcpServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const secret = "resource-secret-0123";
let made = 0;

const reset = () => {
  server.tools = [{ name: "find", inputSchema: { type: "object" } }];
  server.resources = undefined;
  server.before = undefined;
  server.generation = "2025-11-25";
  server.call = () => ({ content: [{ type: "text", text: "Done." }] });
};
reset();
afterEach(reset);

async function toolset(): Promise<Json> {
  const name = `set${(made += 1)}`;
  const body = { name, kind: "mcp", url: server.url, auth_secret: secret };
  const { status, json } = await owner.post("/v1/agent-toolsets", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function agent(use: object, change: object = {}): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const body = { name, config: { ...config, toolsets: [use], ...change } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

async function callTool(name: string, tool: string, values: object = {}): Promise<Json> {
  model.script([{ calls: [{ name: tool, arguments: JSON.stringify(values) }] }, { text: ["Done."] }]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  expect(json).toMatchObject({ status: "completed", output: "Done." });
  return model.asked[1].messages.at(-1).content;
}

test.each(["2025-11-25", "2026-07-28"] as const)(
  "lists and reads the resources of a server of %s",
  async (generation) => {
    server.generation = generation;
    server.resources = [
      { uri: "doc://1", name: "Manual", mimeType: "text/plain", text: `Page one. ${secret}` },
      { uri: "doc://2", name: "Blob", mimeType: "application/zip", blob: "AAAA" },
      { uri: "doc://3", name: "Long", mimeType: "text/plain", text: "x".repeat(200_000) },
    ];
    const set = await toolset();
    expect(set.tools.map(({ name }: Json) => name)).toEqual(["find", "read_resource"]);
    const name = await agent({ toolset_id: set.id });
    const tool = `${set.name}__read_resource`;
    const list: string = await callTool(name, tool);
    expect(list.split("\n").map((line) => JSON.parse(line).uri)).toEqual(["doc://1", "doc://2", "doc://3"]);
    expect(await callTool(name, tool, { uri: "doc://1" })).toBe("[resource doc://1]\nPage one. [secret]");
    expect(await callTool(name, tool, { uri: "doc://2" })).toBe(
      "[resource doc://2 of type application/zip, 3 bytes, left out]",
    );
    expect((await callTool(name, tool, { uri: "doc://3" })).length).toBeLessThan(66_000);
    expect(await callTool(name, tool, { uri: "doc://4" })).toContain("refused: ");
    const without = await agent({ toolset_id: set.id, allow: ["find"] });
    expect(await callTool(without, tool)).toContain("no such tool");
  },
);

test("keeps a server's own tool that is named read_resource", async () => {
  server.resources = [{ uri: "doc://1", name: "Manual", text: "Page one." }];
  server.tools = [{ name: "read_resource", description: "Own.", inputSchema: { type: "object" } }];
  const set = await toolset();
  expect(set.tools).toMatchObject([{ name: "read_resource", description: "Own." }]);
  expect(await callTool(await agent({ toolset_id: set.id }), `${set.name}__read_resource`)).toBe("Done.");
});

test.each([
  ["defaults", "accept", { city: "Bremen", loud: false }],
  ["decline", "decline", undefined],
] as const)(
  "responds to a server's question as the config requires: %s",
  async (elicitation, action, content) => {
    server.generation = "2026-07-28";
    const answers: Json[] = [];
    const requestedSchema = {
      type: "object",
      properties: {
        city: { type: "string", default: "Bremen" },
        loud: { type: "boolean", default: false },
        note: { type: "string" },
      },
      required: ["city"],
    };
    server.call = ({ inputResponses }) => {
      if (inputResponses) {
        answers.push(inputResponses.where);
        return { content: [{ type: "text", text: "Thanks." }] };
      }
      const params = { mode: "form", message: "Where?", requestedSchema };
      return {
        resultType: "input_required",
        requestState: "s",
        inputRequests: { where: { method: "elicitation/create", params } },
      };
    };
    const set = await toolset();
    expect(await callTool(await agent({ toolset_id: set.id, elicitation }), `${set.name}__find`)).toBe(
      "Thanks.",
    );
    expect(answers).toMatchObject([content ? { action, content } : { action }]);
    // If the config has no elicitation setting, the client does not offer elicitation.
    expect(await callTool(await agent({ toolset_id: set.id }), `${set.name}__find`)).not.toBe("Thanks.");
    expect(answers).toHaveLength(1);
  },
);

test("declines a question whose required field has no default", async () => {
  server.generation = "2026-07-28";
  let answer: Json;
  server.call = ({ inputResponses }) => {
    if (inputResponses) {
      answer = inputResponses.who;
      return { content: [{ type: "text", text: "Thanks." }] };
    }
    const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
    const params = { mode: "form", message: "Who?", requestedSchema };
    return {
      resultType: "input_required",
      requestState: "s",
      inputRequests: { who: { method: "elicitation/create", params } },
    };
  };
  const set = await toolset();
  const name = await agent({ toolset_id: set.id, elicitation: "defaults" });
  expect(await callTool(name, `${set.name}__find`)).toBe("Thanks.");
  expect(answer).toMatchObject({ action: "decline" });
});

test("sets a toolset to ready as soon as a call reaches its server", async () => {
  const set = await toolset();
  const name = await agent({ toolset_id: set.id });
  await server.stop();
  const { json: away } = await owner.post(`/v1/agent-toolsets/${set.id}/refresh`);
  expect(away).toMatchObject({ status: "unreachable" });
  await server.start();
  // The list cannot be read, so only the call proves that the server works.
  server.before = ({ body }) => body?.method === "tools/list";
  expect(await callTool(name, `${set.name}__find`)).toBe("Done.");
  const { json } = await owner.get("/v1/agent-toolsets");
  expect(json.items.find(({ id }: Json) => id === set.id)).toMatchObject({
    status: "ready",
    last_error: null,
  });
});
