import { expect, test } from "vitest";
import { clearActorCache } from "#accounts/find-actor.ts";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { workers } from "./overview.ts";

const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner);
let made = 0;

async function agent(extra: object = {}): Promise<Json> {
  made += 1;
  const { status, json } = await owner.post("/v1/agents", { name: `agent-${made}`, config, ...extra });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

test("stores a new agent's config, with all defaults, as version 1, and points the alias prod at this version", async () => {
  const json = await agent({ description: "Helps." });
  expect(json).toMatchObject({
    id: expect.stringMatching(/^agt_[a-z0-9]{20}$/),
    description: "Helps.",
    paused: false,
    worker_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
    aliases: [{ name: "prod", version: 1 }],
    latest_version: 1,
  });
  const version = (await owner.get(`/v1/agents/${json.name}/versions/prod`)).json;
  expect(version).toMatchObject({
    version: 1,
    aliases: ["prod"],
    notes: null,
    created_by: { kind: "api_token" },
    config: { ...config, limits: { max_steps: 75, max_seconds: 900 }, output: { type: "text" } },
  });
});

test("finds an agent by name or id, and a version by a number such as 1 or v1, an alias or latest", async () => {
  const { id, name } = await agent();
  await owner.post(`/v1/agents/${id}/versions`, { config: { ...config, system: "two" } });
  expect((await owner.get(`/v1/agents/${id}`)).json).toEqual((await owner.get(`/v1/agents/${name}`)).json);
  const getVersion = async (wanted: string) =>
    (await owner.get(`/v1/agents/${name}/versions/${wanted}`)).json;
  for (const [wanted, version] of [
    ["1", 1],
    ["v1", 1],
    ["prod", 1],
    ["2", 2],
    ["v2", 2],
    ["latest", 2],
  ] as const) {
    expect((await getVersion(wanted)).version, wanted).toBe(version);
  }
  for (const wanted of ["3", "v3", "0", "staging", "LATEST", "v", "-1"]) {
    expect(await getVersion(wanted), wanted).toMatchObject({ code: "version_not_found" });
  }
  expect((await owner.get("/v1/agents/nobody")).json).toMatchObject({ code: "agent_not_found" });
});

test("publishes an immutable version and points the given aliases at the new version", async () => {
  const { name } = await agent();
  const path = `/v1/agents/${name}`;
  const published = await owner.post(`${path}/versions`, {
    config: { ...config, system: "Be brief." },
    notes: "shorter",
    promote: ["prod", "canary"],
  });
  expect(published.status).toBe(201);
  expect(published.json).toMatchObject({
    version: 2,
    notes: "shorter",
    aliases: ["canary", "prod"],
    config: { system: "Be brief." },
  });
  expect((await owner.get(path)).json.aliases).toEqual([
    { name: "canary", version: 2 },
    { name: "prod", version: 2 },
  ]);
  const { items } = (await owner.get(`${path}/versions`)).json;
  expect(items.map(({ version, aliases }: Json) => [version, aliases])).toEqual([
    [2, ["canary", "prod"]],
    [1, []],
  ]);
  expect(items[0].config).toBeUndefined();
});

test("promotes and rolls back an alias to a version that is given as a number, v1, another alias or latest", async () => {
  const { name } = await agent();
  const path = `/v1/agents/${name}`;
  for (const system of ["two", "three"])
    await owner.post(`${path}/versions`, { config: { ...config, system } });
  const putAlias = (alias: string, version: unknown) =>
    owner.call("PUT", `${path}/aliases/${alias}`, { version });
  expect((await putAlias("prod", "latest")).json).toEqual({ name: "prod", version: 3 });
  expect((await putAlias("staging", 2)).json).toEqual({ name: "staging", version: 2 });
  expect((await putAlias("prod", "staging")).json).toEqual({ name: "prod", version: 2 });
  expect((await putAlias("prod", "v1")).json).toEqual({ name: "prod", version: 1 });
  expect((await putAlias("prod", 9)).json).toMatchObject({ code: "version_not_found" });
  for (const alias of ["latest", "v3", "3", "No", "a-"]) {
    expect(await putAlias(alias, 1), alias).toMatchObject({ status: 400, json: { pointer: "/name" } });
  }
  expect((await owner.get(path)).json.aliases).toEqual([
    { name: "prod", version: 1 },
    { name: "staging", version: 2 },
  ]);
});

test("numbers concurrently published versions consecutively", async () => {
  const { name } = await agent();
  const replies = await Promise.all(
    [1, 2, 3, 4, 5].map((n) =>
      owner.post(`/v1/agents/${name}/versions`, { config: { ...config, system: `${n}` }, promote: ["prod"] }),
    ),
  );
  expect(replies.map(({ json }) => json.version).toSorted((a, b) => a - b)).toEqual([2, 3, 4, 5, 6]);
  expect((await owner.get(`/v1/agents/${name}`)).json.aliases).toEqual([{ name: "prod", version: 6 }]);
});

test.each([
  [{ modle: {} }, "/config/modle", "did you mean 'model'"],
  [{ model: { ...config.model, temprature: 1 } }, "/config/model/temprature", "did you mean 'temperature'"],
  [{ limits: { max_steps: 0 } }, "/config/limits/max_steps", "at least 1"],
  [{ model: { ...config.model, provider: "openai" } }, "/config/model/provider", "openai_compatible"],
  [{ model: { ...config.model, credential_id: "mcr_no" } }, "/config/model/credential_id", "not an existing"],
  [
    { model: { ...config.model, fallbacks: [{ id: "x", credential_id: "mcr_no" }] } },
    "/config/model/fallbacks/0/credential_id",
    "not an existing",
  ],
  [{ toolsets: [{ toolset_id: "tst_no" }] }, "/config/toolsets/0/toolset_id", "does not exist"],
  [{ vm: { allow_domains: ["http://x"] } }, "/config/vm/allow_domains/0", "hostname"],
  [{ output: { type: "json_schema", schema: { type: "nonsense" } } }, undefined, undefined],
  [{ output: { type: "json_schema", schema: { $ref: "#/nowhere" } } }, "/config/output/schema", "Schema"],
  [{ output: { type: "json_schema" } }, "/config/output/schema", "required"],
])("validates every field of an agent's config: %j", async (change, pointer, words) => {
  const { status, json } = await owner.post("/v1/agents", {
    name: `judged-${(made += 1)}`,
    config: { ...config, ...change },
  });
  if (pointer === undefined) return expect(status).toBe(201);
  expect([status, json]).toMatchObject([400, { code: "invalid_request", pointer }]);
  expect(json.detail).toContain(words);
  expect(json.errors[0]).toMatchObject({ pointer });
});

test("rejects an agent's name that is taken, is a path of the API, or looks like an id", async () => {
  const { name } = await agent();
  expect(await owner.post("/v1/agents", { name, config })).toMatchObject({
    status: 409,
    json: { code: "name_taken" },
  });
  for (const bad of ["runs", "pause-all", "approvals", "agt_x", "Upper", "a b", "-a", "a-"]) {
    expect(await owner.post("/v1/agents", { name: bad, config }), bad).toMatchObject({
      status: 400,
      json: { pointer: "/name" },
    });
  }
  const other = await host.person();
  const theirs = await other.post("/v1/agents", { name, config: await modelConfig(other) });
  expect(theirs.status).toBe(201);
  expect((await other.get("/v1/agents")).json.items).toHaveLength(1);
});

test("treats another account's credential as a missing one", async () => {
  const other = await host.person();
  expect(await other.post("/v1/agents", { name: "thief", config })).toMatchObject({
    status: 400,
    json: { pointer: "/config/model/credential_id" },
  });
});

test("renames, describes and pauses an agent, and accepts the response of GET as the body of PATCH", async () => {
  const before = await agent();
  const path = `/v1/agents/${before.id}`;
  const patched = await owner.call("PATCH", path, { ...before, name: "renamed", paused: true });
  expect([patched.status, patched.json]).toMatchObject([
    200,
    { id: before.id, name: "renamed", paused: true, worker_id: before.worker_id },
  ]);
  expect((await owner.get(`/v1/agents/${before.name}`)).status).toBe(404);
  expect((await owner.call("PATCH", path, { name: "agent-1" })).json).toMatchObject({ code: "name_taken" });
  expect((await owner.call("PATCH", path, { config })).json).toMatchObject({ pointer: "/config" });
  expect((await workers(host.app.db, owner.workspaceId, 1000)).items).toContainEqual(
    expect.objectContaining({ id: before.id, status: "paused", worker_id: before.worker_id }),
  );
});

test("pauses and resumes all agents of the account", async () => {
  const person = await host.person();
  expect((await person.get("/v1/agents/pause-all")).json).toEqual({ paused: false, paused_at: null });
  const set = await person.post("/v1/agents/pause-all", { paused: true });
  expect(set).toMatchObject({ status: 200, json: { paused: true } });
  expect((await person.post("/v1/agents/pause-all", { paused: true })).json).toEqual(set.json);
  expect((await person.get("/v1/agents/pause-all")).json).toEqual(set.json);
  expect((await person.post("/v1/agents/pause-all", { paused: false })).json.paused).toBe(false);
});

test("allows only reads in a suspended account", async () => {
  const person = await host.person();
  const own = await modelConfig(person);
  await person.post("/v1/agents", { name: "mine", config: own });
  await host.app.db
    .updateTable("workspaces")
    .set({ suspended_at: new Date() })
    .where("id", "=", person.workspaceId)
    .execute();
  clearActorCache(host.app);
  expect((await person.get("/v1/agents/mine")).status).toBe(200);
  for (const [method, path, body] of [
    ["POST", "/v1/agents", { name: "more", config: own }],
    ["PATCH", "/v1/agents/mine", { paused: true }],
    ["POST", "/v1/agents/mine/versions", { config: own }],
    ["PUT", "/v1/agents/mine/aliases/prod", { version: 1 }],
    ["POST", "/v1/agents/pause-all", { paused: true }],
  ] as const) {
    expect(await person.call(method, path, body), path).toMatchObject({
      status: 402,
      json: { code: "account_suspended" },
    });
  }
});

test("refuses to list agents for a token with the invoke scope alone", async () => {
  const token = await owner.tokenWith(["agents:invoke"]);
  const as = { authorization: `Bearer ${token}` };
  expect((await owner.call("GET", "/v1/agents", undefined, as)).json).toMatchObject({
    code: "missing_scope",
    scope: "agents:read",
  });
});
