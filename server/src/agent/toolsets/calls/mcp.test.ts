/** Toolsets of real MCP servers from npm. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startBridged, startEverything } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const directory = mkdtempSync(join(tmpdir(), "kontor-mcp-"));
afterAll(() => rmSync(directory, { recursive: true }));
/** The servers start here, so that they stop with this file. */
const everything = {
  streamableHttp: await startEverything("streamableHttp"),
  sse: await startEverything("sse"),
};
const files = await startBridged("@modelcontextprotocol/server-filesystem", [directory]);
const memory = await startBridged("@modelcontextprotocol/server-memory", [], {
  MEMORY_FILE_PATH: join(directory, "memory.jsonl"),
});
let made = 0;

async function toolset(url: string): Promise<Json> {
  const name = `server${(made += 1)}`;
  const { status, json } = await owner.post("/v1/agent-toolsets", { name, kind: "mcp", url });
  expect(status, JSON.stringify(json)).toBe(201);
  expect(json).toMatchObject({ kind: "mcp", status: "ready", last_error: null, url });
  return json;
}

/** Makes the model call these tools in one step, and returns the results. */
async function callTools(set: Json, calls: readonly [tool: string, values: object][]): Promise<Json[]> {
  const name = `agent-${(made += 1)}`;
  const body = { name, config: { ...config, toolsets: [{ toolset_id: set.id, elicitation: "decline" }] } };
  expect((await owner.post("/v1/agents", body)).status).toBe(201);
  model.script([
    {
      calls: calls.map(([tool, values]) => ({
        name: `${set.name}__${tool}`,
        arguments: JSON.stringify(values),
      })),
    },
    { text: ["Done."] },
  ]);
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  expect(json).toMatchObject({ status: "completed" });
  return model.asked[1].messages.slice(-calls.length).map(({ content }: Json) => content);
}

test.each(["streamableHttp", "sse"] as const)(
  "offers and calls the tools of the reference server over %s",
  async (kind) => {
    const set = await toolset(everything[kind]);
    expect(set.tools).toContainEqual(
      expect.objectContaining({
        name: "echo",
        original_name: "echo",
        description: expect.stringMatching(/echo/i),
      }),
    );
    const [echo, sum, image, wrong] = await callTools(set, [
      ["echo", { message: "Good day" }],
      ["get-sum", { a: 17, b: 25 }],
      ["get-tiny-image", {}],
      ["get-sum", { a: "x" }],
    ]);
    expect(echo).toBe("Echo: Good day");
    expect(sum).toContain("42");
    expect(image).toMatch(/\[image of type image\/png, \d+ bytes, left out\]/);
    expect(wrong).toContain("do not fit");
    const [links, manual, asked] = await callTools(set, [
      ["get-resource-links", { count: 2 }],
      ["read_resource", { uri: "demo://resource/dynamic/text/2" }],
      ["trigger-elicitation-request", {}],
    ]);
    expect(links).toContain("demo://resource/dynamic/text/2");
    expect(manual).toMatch(/^\[resource demo:\/\/resource\/dynamic\/text\/2\]\n.*plaintext/i);
    expect(asked).toContain("User declined");
    expect(model.asked[0].tools.map((one: Json) => one.function.name)).toContain(`${set.name}__get-sum`);
  },
);

test("the filesystem server reads and writes files inside its directory only", async () => {
  writeFileSync(join(directory, "a.txt"), "Guten Tag");
  const set = await toolset(files);
  const [read, written, outside] = await callTools(set, [
    ["read_text_file", { path: join(directory, "a.txt") }],
    ["write_file", { path: join(directory, "b.txt"), content: "Moin" }],
    ["read_text_file", { path: "/etc/passwd" }],
  ]);
  expect(read).toContain("Guten Tag");
  expect(written).toContain("Successfully");
  expect(outside).toMatch(/denied/i);
});

test("reads in one run a fact that an earlier run stored with the memory server", async () => {
  const set = await toolset(memory);
  await callTools(set, [
    ["create_entities", { entities: [{ name: "Ada", entityType: "person", observations: ["likes tea"] }] }],
  ]);
  const [found] = await callTools(set, [["search_nodes", { query: "Ada" }]]);
  expect(found).toContain("likes tea");
});
