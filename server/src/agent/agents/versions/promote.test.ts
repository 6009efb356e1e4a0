/** Tests that an alias moves only to a version whose dependencies exist, and whose scopes the caller has. */
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

/**
 * Creates an agent with two versions. The first version has this config. The second version, at `prod`, has no
 * dependencies.
 */
async function agent(change: object): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const config = { ...(await modelConfig(owner)), ...change };
  const first = await owner.post("/v1/agents", { name, config });
  expect(first.status, JSON.stringify(first.json)).toBe(201);
  const second = { config: await modelConfig(owner), promote: ["prod"] };
  expect((await owner.post(`/v1/agents/${name}/versions`, second)).status).toBe(201);
  return name;
}

const putAlias = (name: string, version: unknown, token = owner.token, alias = "prod") =>
  owner.call("PUT", `/v1/agents/${name}/aliases/${alias}`, { version }, { authorization: `Bearer ${token}` });
const aliases = async (name: string): Promise<Json> => (await owner.get(`/v1/agents/${name}`)).json.aliases;
const unmoved = [{ name: "prod", version: 2 }];

test.each([
  [
    "a deleted toolset",
    async () => {
      const id = await toolset();
      return {
        config: { toolsets: [{ toolset_id: await toolset() }, { toolset_id: id }] },
        go: () => owner.call("DELETE", `/v1/agent-toolsets/${id}`),
      };
    },
    "config.toolsets[1].toolset_id: does not exist; create the toolset first",
  ],
  [
    "a deleted tool",
    async () => {
      const id = await toolset();
      return {
        config: { toolsets: [{ toolset_id: id, allow: ["find"] }] },
        go: () => owner.call("PATCH", `/v1/agent-toolsets/${id}`, { http_tools: [tool("look")] }),
      };
    },
    "config.toolsets[0].allow[0]: is not a tool of the toolset",
  ],
  [
    "a deleted credential",
    async () => {
      const config = await modelConfig(owner);
      return {
        config,
        go: () => owner.call("DELETE", `/v1/model-credentials/${config.model.credential_id}`),
      };
    },
    "config.model.credential_id: is not an existing model credential",
  ],
  [
    "a deleted volume",
    async () => {
      const { json } = await owner.post("/v1/sandboxes/volumes", { name: "notes" });
      return {
        config: { vm: { volume: json.id } },
        go: () => owner.call("DELETE", `/v1/sandboxes/volumes/${json.id}`),
      };
    },
    "config.vm.volume: is not an existing volume; create the volume first",
  ],
] as const)(
  "refuses to point an alias at a version with %s, and names the field",
  async (_, begin, words) => {
    const { config, go } = await begin();
    const name = await agent(config);
    expect((await putAlias(name, 1)).json).toEqual({ name: "prod", version: 1 });
    await putAlias(name, 2);
    expect([200, 204]).toContain((await go()).status);
    const { status, json } = await putAlias(name, 1);

    expect([status, json]).toMatchObject([400, { code: "invalid_request", pointer: "/version" }]);
    expect(json.detail).toContain(`version: 1 cannot run any more: ${words}`);
    expect((await putAlias(name, 1, owner.token, "canary")).status).toBe(400);
    expect(await aliases(name)).toEqual(unmoved);
  },
);

test("refuses to point an alias at a version with scopes that the caller lacks", async () => {
  const name = await agent({ platform: { scopes: ["platform:write", "sandboxes:read"] } });
  const narrow = await owner.tokenWith(["agents:write", "platform:write"]);
  const refused = await putAlias(name, "v1", narrow);
  expect([refused.status, refused.json]).toMatchObject([
    403,
    { code: "missing_scope", scope: "sandboxes:read", pointer: "/version" },
  ]);
  expect(await aliases(name)).toEqual(unmoved);
  expect((await putAlias(name, 2, narrow)).status).toBe(200);
  const wide = await owner.tokenWith(["agents:write", "platform:write", "sandboxes:write"]);
  expect((await putAlias(name, 1, wide)).json).toEqual({ name: "prod", version: 1 });
});
