/** The prompt of a step, compared with the request that the model's server received. */
import { expect, test } from "vitest";
import { testClock } from "../../../../test/harness.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";
import { stripExpiredTexts } from "../journal/strip-texts.ts";

const clock = testClock(new Date());
const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost({ clock });
const owner = await host.person();
const stranger = await host.person();
const { json: toolset } = await owner.post("/v1/agent-toolsets", {
  name: "desk",
  kind: "http",
  url: tools.url,
  auth_secret: "a-secret-of-the-desk",
  http_tools: [
    { name: "look", description: "Looks.", method: "GET", path: "/look", parameters: { type: "object" } },
  ],
});
const base = await modelConfig(owner, model.url);
let made = 0;

async function agent(change: object = {}): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const config = { ...base, system: "Be brief.", toolsets: [{ toolset_id: toolset.id }], ...change };
  const { status, json } = await owner.post("/v1/agents", { name, config });
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

const invoke = async (name: string, body: object): Promise<Json> =>
  (await owner.post(`/v1/agents/${name}/invoke`, body)).json;
const pathOf = (run: string, step: number | string) => `/v1/agents/runs/${run}/steps/${step}/prompt`;
const look = { calls: [{ name: "desk__look", arguments: '{"at":"door"}' }], reasoning: ["thought"] };

/** Returns the texts of a request to the model's server. */
const textsOf = ({ messages }: Json): string[] =>
  messages
    .flatMap(({ content, tool_calls }: Json) => [
      ...(typeof content === "string" ? [content] : (content ?? []).map(({ text }: Json) => text)),
      ...(tool_calls ?? []).map((call: Json) => call.function.arguments),
    ])
    .filter(Boolean);

test("returns the system prompt, the messages and the tools of each step as the model got them", async () => {
  tools.answer = (_, response) => response.end("A long result.");
  const name = await agent({ memory: {}, context: { pin: ["It rains."] } });
  model.script([
    { calls: [{ name: "memory_save", arguments: '{"key":"city","value":"Bremen"}' }] },
    { text: ["Saved."] },
  ]);
  const first = await invoke(name, { input: "I live in Bremen.", end_user_id: "ada" });
  model.script([look, { text: ["Open."] }]);
  const { run_id } = await invoke(name, { input: "Is it open?", session_id: first.session_id });
  for (const [place, asked] of model.asked.entries()) {
    const { status, json } = await owner.get(pathOf(run_id, place + 1));
    expect([status, json]).toMatchObject([200, { run_id, step: place + 1, model: "scripted" }]);
    expect(json.system).toMatch(
      /^Be brief\.\n\nPinned facts:\n- It rains\.\n\nFacts that you saved.*\ncity: "Bremen"/s,
    );
    const texts = json.messages.flatMap(({ content }: Json) =>
      content.flatMap((part: Json) => part.text ?? part.output?.value ?? JSON.stringify(part.input)),
    );
    expect(texts).toEqual(
      textsOf({ messages: asked.messages.filter(({ role }: Json) => role !== "system") }),
    );
    expect(json.tools.map((tool: Json) => [tool.name, tool.parameters])).toEqual(
      asked.tools.map((tool: Json) => [tool.function.name, tool.function.parameters]),
    );
    expect(JSON.stringify(json)).not.toMatch(/a-secret-of-the-desk|a-key-of-the-model|thought/);
  }
  expect((await owner.get(pathOf(run_id, 2))).json.messages.at(-1).content[0].output.value).toBe(
    "A long result.",
  );
});

test("shows the summary in place of the messages that it covers", async () => {
  const name = await agent({ context: { compact_at_tokens: 1000, keep_last_messages: 2 } });
  const messages = Array.from({ length: 8 }, (_, n) => ({
    role: n % 2 === 0 ? "user" : "assistant",
    content: `${n} ${"x".repeat(900)}`,
  }));
  model.script([{ text: ["They counted."] }, { text: ["Nine."] }]);
  const { run_id } = await invoke(name, { input: "Go on.", messages });
  const { json } = await owner.get(pathOf(run_id, 2));
  expect(json.messages.map(({ content }: Json) => content[0].text)).toEqual([
    expect.stringMatching(/They counted\.$/),
    "Go on.",
  ]);
  expect((await owner.get(pathOf(run_id, 1))).json.code).toBe("prompt_expired");
});

test("refuses other workspaces and tokens without agents:read, and returns 404 for unknown steps", async () => {
  model.script([{ text: ["Hello."] }]);
  const { run_id } = await invoke(await agent(), { input: "Hi" });
  expect((await stranger.get(pathOf(run_id, 1))).json.code).toBe("run_not_found");
  const invoking = await owner.tokenWith(["agents:invoke"]);
  const as = { authorization: `Bearer ${invoking}` };
  expect((await owner.call("GET", pathOf(run_id, 1), undefined, as)).json.code).toBe("missing_scope");
  for (const step of [0, 2, "-1", "x", "1e3"])
    expect((await owner.get(pathOf(run_id, step))).json.code, String(step)).toBe("step_not_found");
});

test("deletes prompts when the session ends, and an hour after the run", async () => {
  model.script([{ text: ["Hello."] }]);
  const name = await agent();
  const ended = await invoke(name, { input: "Hi" });
  const late = await invoke(name, { input: "Hi" });
  await owner.call("DELETE", `/v1/agents/${name}/sessions/${ended.session_id}`);
  expect(await owner.get(pathOf(ended.run_id, 1))).toMatchObject({
    status: 410,
    json: { code: "prompt_expired" },
  });
  expect((await owner.get(pathOf(late.run_id, 1))).status).toBe(200);
  clock.advance(3_600_001);
  expect(await owner.get(pathOf(late.run_id, 1))).toMatchObject({
    status: 410,
    json: { code: "prompt_expired" },
  });
  await stripExpiredTexts(host.app, clock.now());
  const left = await host.app.db
    .selectFrom("agent_steps")
    .select("prompt")
    .where("run_id", "=", late.run_id)
    .execute();
  expect(left).toEqual([{ prompt: null }]);
});
