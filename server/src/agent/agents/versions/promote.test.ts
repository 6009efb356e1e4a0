/** An alias points at what can be served, and at what whoever points it may let act. */
import { expect, test } from "vitest";
import { testHost } from "#sandbox/testing/sandbox-app.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";

const host = await agentHost({ isIdle: true, machines: (db) => testHost(db) });
const owner = await host.person();
let made = 0;

const tool = (name: string) => ({
  name,
  description: "Does.",
  method: "GET",
  path: "/",
  parameters: { type: "object" },
});

async function toolset(): Promise<string> {
  const body = {
    name: `set${(made += 1)}`,
    kind: "http",
    url: "http://127.0.0.1:9/",
    http_tools: [tool("find")],
  };
  return (await owner.post("/v1/agent-toolsets", body)).json.id;
}

/** Of an agent whose first version has this config, and whose second, at `prod`, has nothing that could go. */
async function agent(change: object): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const config = { ...(await modelConfig(owner)), ...change };
  const first = await owner.post("/v1/agents", { name, config });
  expect(first.status, JSON.stringify(first.json)).toBe(201);
  const second = { config: await modelConfig(owner), promote: ["prod"] };
  expect((await owner.post(`/v1/agents/${name}/versions`, second)).status).toBe(201);
  return name;
}

const put = (name: string, version: unknown, token = owner.token, alias = "prod") =>
  owner.call("PUT", `/v1/agents/${name}/aliases/${alias}`, { version }, { authorization: `Bearer ${token}` });
const aliases = async (name: string): Promise<Json> => (await owner.get(`/v1/agents/${name}`)).json.aliases;
const unmoved = [{ name: "prod", version: 2 }];

test.each([
  [
    "a toolset that is gone",
    async () => {
      const id = await toolset();
      return {
        config: { toolsets: [{ toolset_id: await toolset() }, { toolset_id: id }] },
        go: () => owner.call("DELETE", `/v1/agent-toolsets/${id}`),
      };
    },
    "config.toolsets[1].toolset_id: no such toolset",
  ],
  [
    "a tool that is gone",
    async () => {
      const id = await toolset();
      return {
        config: { toolsets: [{ toolset_id: id, allow: ["find"] }] },
        go: () => owner.call("PATCH", `/v1/agent-toolsets/${id}`, { http_tools: [tool("look")] }),
      };
    },
    "config.toolsets[0].allow[0]: the toolset has no such tool",
  ],
  [
    "a credential that is gone",
    async () => {
      const config = await modelConfig(owner);
      return {
        config,
        go: () => owner.call("DELETE", `/v1/model-credentials/${config.model.credential_id}`),
      };
    },
    "config.model.credential_id: no such model credential",
  ],
  [
    "a volume that is gone",
    async () => {
      const { json } = await owner.post("/v1/sandboxes/volumes", { name: "notes" });
      return {
        config: { vm: { volume: json.id } },
        go: () => owner.call("DELETE", `/v1/sandboxes/volumes/${json.id}`),
      };
    },
    "config.vm.volume: no such volume",
  ],
] as const)(
  "no alias is pointed at a version with %s, and it says which field it was",
  async (_, begin, words) => {
    const { config, go } = await begin();
    const name = await agent(config);
    expect((await put(name, 1)).json).toEqual({ name: "prod", version: 1 });
    await put(name, 2);
    expect([200, 204]).toContain((await go()).status);
    const { status, json } = await put(name, 1);

    expect([status, json]).toMatchObject([400, { code: "invalid_request", pointer: "/version" }]);
    expect(json.detail).toContain(`version: 1 can't run any more: ${words}`);
    expect((await put(name, 1, owner.token, "canary")).status).toBe(400);
    expect(await aliases(name)).toEqual(unmoved);
  },
);

test("nobody points an alias at a version that may do what they may not, forwards or back", async () => {
  const name = await agent({ platform: { scopes: ["platform:write", "sandboxes:read"] } });
  const narrow = await owner.tokenWith(["agents:write", "platform:write"]);
  const refused = await put(name, "v1", narrow);
  expect([refused.status, refused.json]).toMatchObject([
    403,
    { code: "missing_scope", scope: "sandboxes:read", pointer: "/version" },
  ]);
  expect(await aliases(name)).toEqual(unmoved);
  expect((await put(name, 2, narrow)).status).toBe(200);
  const wide = await owner.tokenWith(["agents:write", "platform:write", "sandboxes:write"]);
  expect((await put(name, 1, wide)).json).toEqual({ name: "prod", version: 1 });
});
