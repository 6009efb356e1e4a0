import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
const stranger = await host.person();
const config = await modelConfig(owner, model.url);
let made = 0;

async function agent(): Promise<Json> {
  made += 1;
  const { status, json } = await owner.post("/v1/agents", { name: `removable-${made}`, config });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

const del = (path: string) => owner.call("DELETE", path);

test("lists agents page by page, filters the list, and excludes archived agents", async () => {
  const person = await host.person();
  const own = await modelConfig(person, model.url);
  for (const name of ["alpha", "beta-1", "beta-2", "gamma"])
    await person.post("/v1/agents", { name, config: own });
  const names = (json: Json) => json.items.map(({ name }: Json) => name);
  const first = (await person.get("/v1/agents?limit=3")).json;
  expect(names(first)).toEqual(["gamma", "beta-2", "beta-1"]);
  const second = (await person.get(`/v1/agents?limit=3&cursor=${encodeURIComponent(first.next_cursor)}`))
    .json;
  expect([names(second), second.next_cursor]).toEqual([["alpha"], null]);
  expect(names((await person.get("/v1/agents?name=beta")).json)).toEqual(["beta-2", "beta-1"]);

  await person.call("PATCH", "/v1/agents/beta-1", { paused: true });
  expect(names((await person.get("/v1/agents?paused=true")).json)).toEqual(["beta-1"]);
  const archived = await person.call("PATCH", "/v1/agents/gamma", { archived: true });
  expect(archived.json).toMatchObject({ archived: true, archived_at: expect.any(String) });
  expect(names((await person.get("/v1/agents")).json)).toEqual(["beta-2", "beta-1", "alpha"]);
  expect(names((await person.get("/v1/agents?archived=true")).json)).toEqual(["gamma"]);
  expect(names((await person.get("/v1/agents?archived=all")).json)).toHaveLength(4);
  const refused = await person.get(`/v1/agents?name=beta&cursor=${encodeURIComponent(first.next_cursor)}`);
  expect(refused.status).toBe(400);
});

test("refuses to run an archived agent until it is unarchived", async () => {
  model.script([{ text: ["Hi."] }]);
  const { name } = await agent();
  await owner.call("PATCH", `/v1/agents/${name}`, { archived: true });
  const refused = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" });
  expect(refused).toMatchObject({ status: 409, json: { code: "agent_archived" } });
  await owner.call("PATCH", `/v1/agents/${name}`, { archived: false });
  expect((await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" })).json.status).toBe("completed");
});

test("deletes an agent with its data, and refuses the delete while one of the agent's runs is active", async () => {
  const held = Promise.withResolvers<void>();
  model.script([{ text: ["Hi."], until: held.promise }]);
  const { id, name } = await agent();
  const { run_id } = (await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", wait_s: 0 })).json;
  const refused = await del(`/v1/agents/${name}`);
  expect(refused).toMatchObject({ status: 409, json: { code: "agent_in_use", run_ids: [run_id] } });
  expect(refused.json.detail).toContain("cancel");
  await owner.post(`/v1/agents/runs/${run_id}/cancel`);
  held.resolve();
  expect((await stranger.call("DELETE", `/v1/agents/${id}`)).status).toBe(404);
  expect((await del(`/v1/agents/${name}`)).status).toBe(204);
  expect((await del(`/v1/agents/${name}`)).json.code).toBe("agent_not_found");
  expect((await owner.get(`/v1/agents/runs/${run_id}`)).json.code).toBe("run_not_found");
  // The name of a deleted agent can be used again.
  expect((await owner.post("/v1/agents", { name, config })).status).toBe(201);
});

test("deletes an unused version, and refuses to delete a version that an alias or a session uses", async () => {
  model.script([{ text: ["Hi."] }]);
  const { name } = await agent();
  const path = `/v1/agents/${name}`;
  const { session_id } = (await owner.post(`${path}/invoke`, { input: "Hi" })).json;
  expect((await del(`${path}/versions/1`)).json).toMatchObject({ code: "version_in_use", aliases: ["prod"] });
  await owner.post(`${path}/versions`, { config: { ...config, system: "two" }, promote: ["prod"] });
  const pinned = await del(`${path}/versions/1`);
  expect(pinned.json).toMatchObject({ code: "version_in_use", aliases: [], live_sessions: 1 });
  await del(`${path}/sessions/${session_id}`);
  expect((await stranger.call("DELETE", `${path}/versions/1`)).status).toBe(404);
  expect((await del(`${path}/versions/v1`)).status).toBe(204);
  expect((await owner.get(`${path}/versions/1`)).json.code).toBe("version_not_found");
  expect((await del(`${path}/versions/2`)).json.code).toBe("version_in_use");
  const session = (await owner.get(`${path}/sessions/${session_id}`)).json;
  expect(session).toMatchObject({ status: "ended", version: null });
});

test("deletes an alias, but not the alias prod while a schedule uses it", async () => {
  const { name } = await agent();
  const path = `/v1/agents/${name}`;
  await owner.call("PUT", `${path}/aliases/canary`, { version: 1 });
  expect((await stranger.call("DELETE", `${path}/aliases/canary`)).status).toBe(404);
  expect((await del(`${path}/aliases/canary`)).status).toBe(204);
  expect((await del(`${path}/aliases/canary`)).json.code).toBe("alias_not_found");
  const schedule = (await owner.post(`${path}/schedules`, { schedule: "daily", message: "Hi" })).json;
  expect((await del(`${path}/aliases/prod`)).json).toMatchObject({ code: "alias_in_use", schedules: 1 });
  await del(`${path}/schedules/${schedule.id}`);
  expect((await del(`${path}/aliases/prod`)).status).toBe(204);
});

test("leaves no incomplete run when an agent is deleted during concurrent invokes", async () => {
  model.script([{ text: ["Hi."] }]);
  for (let round = 0; round < 5; round += 1) {
    const { id, name } = await agent();
    const invokes = Array.from({ length: 4 }, () => owner.post(`/v1/agents/${name}/invoke`, { input: "Hi" }));
    const [deleted, ...answers] = await Promise.all([del(`/v1/agents/${id}`), ...invokes]);
    expect([204, 409]).toContain(deleted!.status);
    for (const { status, json } of answers)
      expect(
        json.status === "completed" || ["agent_not_found", "run_not_found"].includes(json.code),
        `${status} ${JSON.stringify(json)}`,
      ).toBe(true);
  }
});
