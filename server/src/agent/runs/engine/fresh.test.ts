/** Changes of a toolset during a model call and during tool calls. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";

const model = await startModelServer();
const [before, after] = [await startToolServer(), await startToolServer()];
const host = await agentHost();
const owner = await host.person();

const toolset = await owner.post("/v1/agent-toolsets", {
  name: "desk",
  kind: "http",
  url: before.url,
  auth_secret: "the-first-secret-0123",
  http_tools: [
    { name: "look", description: "Looks.", method: "POST", path: "/look", parameters: { type: "object" } },
  ],
});
const config: Json = {
  ...(await modelConfig(owner, model.url)),
  toolsets: [{ toolset_id: toolset.json.id }],
};
await owner.post("/v1/agents", { name: "clerk", config });
const look = { name: "desk__look", arguments: "{}" };

test("makes a call with the address and the secret that its toolset has at the time of the call", async () => {
  const changed = Promise.withResolvers<void>();
  model.script([{ calls: [look], until: changed.promise }, { text: ["Done."] }]);
  const invoked = owner.post("/v1/agents/clerk/invoke", { input: "Go." });
  await expect.poll(() => model.asked.length).toBe(1);
  const auth_secret = "the-second-secret-0123";
  const patched = await owner.call("PATCH", `/v1/agent-toolsets/${toolset.json.id}`, {
    url: after.url,
    auth_secret,
  });
  expect(patched.status, JSON.stringify(patched.json)).toBe(200);
  changed.resolve();
  expect((await invoked).json).toMatchObject({ status: "completed", output: "Done." });
  expect(before.asked).toEqual([]);
  expect(after.asked.map(({ headers }) => headers.authorization)).toEqual([`Bearer ${auth_secret}`]);
});

test("sends a delayed call to the toolset's newest address", async () => {
  const turn = Promise.withResolvers<void>();
  let asked = 0;
  const seen = before.asked.length;
  after.answer = (_, response) => {
    asked += 1;
    void turn.promise.then(() => response.writeHead(200).end("{}"));
  };
  model.script([{ calls: Array(9).fill(look) }, { text: ["Done."] }]);
  const invoked = owner.post("/v1/agents/clerk/invoke", { input: "Go." });
  await expect.poll(() => asked).toBe(8);
  const path = `/v1/agent-toolsets/${toolset.json.id}`;
  await owner.call("PATCH", path, { url: before.url, auth_secret: "the-third-secret-0123" });
  turn.resolve();
  expect((await invoked).json).toMatchObject({ status: "completed", output: "Done." });
  after.answer = undefined;
  expect(asked).toBe(8);
  const ninth = before.asked.slice(seen).map(({ headers }) => headers.authorization);
  expect(ninth).toEqual(["Bearer the-third-secret-0123"]);
  await owner.call("PATCH", path, { url: after.url, auth_secret: "the-second-secret-0123" });
});

test("stores the outcome of a call whose result does not fit into the session, and fails the run", async () => {
  model.script([{ calls: [look] }]);
  after.answer = (_, response) =>
    void sql`update agent_sessions set bytes = 32 * 1024 * 1024 - 10`
      .execute(host.app.db)
      .then(() => response.writeHead(200).end("{}"));
  const { json } = await owner.post("/v1/agents/clerk/invoke", { input: "Go." });
  after.answer = undefined;
  expect((await owner.get(`/v1/agents/runs/${json.run_id}`)).json).toMatchObject({
    status: "failed",
    error_code: "limit_tokens",
    tools_called: [{ status: "completed" }],
  });
});

test("sends the results of parallel calls to the model together, in whatever order the calls end", async () => {
  const first = Promise.withResolvers<void>();
  let asked = 0;
  after.answer = (_, response) => {
    asked += 1;
    const answer = () => response.writeHead(200).end(`"${asked}"`);
    if (asked === 1) void first.promise.then(answer);
    else answer();
  };
  let told: Json[] = [];
  model.script((body: Json) => {
    told = body.messages.filter(({ role }: Json) => role === "tool");
    return told.length > 0 ? { text: ["Done."] } : { calls: [look, look, look] };
  });
  const invoked = owner.post("/v1/agents/clerk/invoke", { input: "Go." });
  await expect.poll(() => asked).toBe(3);
  first.resolve();
  const { json } = await invoked;
  after.answer = undefined;
  expect(json.status).toBe("completed");
  expect(told).toHaveLength(3);
  const run = (await owner.get(`/v1/agents/runs/${json.run_id}`)).json;
  expect(run.tools_called.map(({ status }: Json) => status)).toEqual(Array(3).fill("completed"));
});
