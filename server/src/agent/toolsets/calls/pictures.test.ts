/** Pictures that tools return, and the form in which a model gets them. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { stripExpiredTexts } from "#agent/runs/journal/strip-texts.ts";
import { RunExecutor } from "#agent/runs/engine/run-executor.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { startMcpServer } from "#agent/testing/mcp-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { startToolServer } from "#agent/testing/tool-server.ts";

const model = await startModelServer();
const server = await startMcpServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
const png = Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), Buffer.alloc(100)]);
const image = { type: "image", data: png.toString("base64"), mimeType: "image/jpeg" };
const sent = { type: "image_url", image_url: { url: `data:image/png;base64,${image.data}` } };
let made = 0;

server.tools = [{ name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } }];
const screen = (name: string) => ({
  name,
  description: "",
  method: "GET",
  path: `/${name}`,
  parameters: { type: "object" },
});
const { json: mcp } = await owner.post("/v1/agent-toolsets", { name: "eyes", kind: "mcp", url: server.url });
const { json: http } = await owner.post("/v1/agent-toolsets", {
  name: "shop",
  kind: "http",
  url: shop.url,
  http_tools: [screen("first"), screen("second")],
});

afterEach(() => {
  onKillPoint(undefined);
  server.call = () => ({ content: [{ type: "text", text: "Done." }] });
  shop.answer = undefined;
});

async function agent(images?: boolean): Promise<string> {
  const name = `agent-${(made += 1)}`;
  const toolsets = [{ toolset_id: mcp.id }, { toolset_id: http.id }];
  const body = { name, config: { ...config, model: { ...config.model, images }, toolsets } };
  const { status, json } = await owner.post("/v1/agents", body);
  expect(status, JSON.stringify(json)).toBe(201);
  return name;
}

async function run(name: string, tools: string[], options: object = {}): Promise<Json> {
  model.script([{ calls: tools.map((tool) => ({ name: tool, arguments: "{}" })) }, { text: ["Done."] }]);
  return (await owner.post(`/v1/agents/${name}/invoke`, { input: "Look.", ...options })).json;
}

const lastMessages = (): Json[] => model.asked.at(-1).messages;
const findCalls = (runId: string) =>
  host.app.db
    .selectFrom("agent_tool_calls")
    .select(["result", "content"])
    .where("run_id", "=", runId)
    .orderBy("position")
    .execute();

test("sends a picture of an MCP tool to the model, and deletes the picture with the run's output", async () => {
  server.call = () => ({ content: [{ type: "text", text: "Here:" }, image, { type: "text", text: "End." }] });
  const name = await agent(true);
  const { run_id, session_id } = await run(name, ["eyes__look"]);
  expect(lastMessages().at(-2).content).toMatch(/^Here:\n\n\[image of type image\/png, 108 bytes, shown/);
  expect(lastMessages().at(-1).content.slice(1)).toEqual([sent]);
  const content = [
    { type: "text", text: "Here:" },
    { type: "file", mediaType: "image/png", data: { type: "data", data: image.data } },
    { type: "text", text: "End." },
  ];
  expect(await findCalls(run_id)).toEqual([
    { result: "Here:\n\n[image of type image/png, 108 bytes]\n\nEnd.", content },
  ]);
  const { json: said } = await owner.get(`/v1/agents/${name}/sessions/${session_id}/messages`);
  expect(said.items.find(({ kind }: Json) => kind === "tools").content[0].output.value).toEqual(content);
  // The model gets the picture in the next run of the session too.
  model.script([{ text: ["Yes."] }]);
  await owner.post(`/v1/agents/${name}/invoke`, { input: "Still there?", session_id });
  expect(JSON.stringify(lastMessages())).toContain(image.data);
  await stripExpiredTexts(host.app, new Date(Date.now() + 2 * 3_600_000));
  expect(await findCalls(run_id)).toEqual([{ result: null, content: null }]);
});

test("sends a note in place of the picture to a model that is not known to accept pictures", async () => {
  server.call = () => ({ content: [image] });
  await run(await agent(), ["eyes__look"]);
  expect(lastMessages().at(-1)).toMatchObject({
    role: "tool",
    content: "[image of type image/png, 108 bytes, left out]",
  });
});

test("sends an image that is an embedded resource as a picture", async () => {
  const resource = { uri: "screen://1", mimeType: "image/png", blob: image.data };
  server.call = () => ({ content: [{ type: "resource", resource }] });
  await run(await agent(true), ["eyes__look"]);
  expect(lastMessages().at(-1).content.slice(1)).toEqual([sent]);
});

test("sends notes in place of audio and of invalid pictures", async () => {
  server.call = () => ({
    content: [
      { type: "audio", data: "AAAA", mimeType: "audio/wav" },
      { ...image, data: "AAAA" },
    ],
  });
  await run(await agent(true), ["eyes__look"]);
  expect(lastMessages().at(-1)).toMatchObject({
    role: "tool",
    content: "[audio of type audio/wav, 3 bytes, left out]\n\n[image of type image/jpeg, 3 bytes, left out]",
  });
});

test("sends the image that an HTTP tool returns", async () => {
  shop.answer = (path, response) =>
    response
      .writeHead(200, { "content-type": "image/png" })
      .end(path.endsWith("first") ? png : Buffer.concat([png, Buffer.alloc(3 * 1024 ** 2)]));
  await run(await agent(true), ["shop__first", "shop__second"]);
  const [, tooLarge, pictures] = lastMessages().slice(-3);
  expect(tooLarge.content).toBe("[image of 3145836 bytes, left out]");
  expect(pictures.content.slice(1)).toEqual([sent]);
});

test("sends a picture whose call ended in a process that was killed before the step's end", async () => {
  const ended = Promise.withResolvers<void>();
  const mayGoOn = Promise.withResolvers<void>();
  let held = 0;
  shop.answer = (path, response) => {
    if (path.endsWith("second") && (held += 1) === 1) return;
    response.writeHead(200, { "content-type": "image/png" }).end(png);
  };
  let isFirst = true;
  onKillPoint(async (at) => {
    if (at !== "agent.call.ended" || !isFirst) return;
    isFirst = false;
    ended.resolve();
    await mayGoOn.promise;
  });
  const { run_id } = await run(await agent(true), ["shop__first", "shop__second"], { wait_s: 0 });
  await ended.promise;
  while (held === 0) await sleep(10);
  const next = new RunExecutor(host.app, { pauseMs: 5 });
  await next.start();
  await next.waitForOutcome(run_id, 20_000);
  mayGoOn.resolve();
  onKillPoint(undefined);
  await next.stop();
  expect((await owner.get(`/v1/agents/runs/${run_id}`)).json).toMatchObject({
    status: "completed",
    attempts: 2,
  });
  expect(lastMessages().at(-1).content.slice(1)).toEqual([sent, sent]);
  expect(shop.asked.filter(({ path }) => path.endsWith("first"))).toHaveLength(2);
});

test("repeats a request without pictures when the model's server refuses them, and logs the refusal", async () => {
  server.call = () => ({ content: [image] });
  const name = await agent(true);
  model.script((body: Json) => {
    if (JSON.stringify(body).includes("image_url")) return { status: 400, error: "no images" };
    const isAnswered = body.messages.some(({ role }: Json) => role === "tool");
    return isAnswered ? { text: ["Done."] } : { calls: [{ name: "eyes__look", arguments: "{}" }] };
  });
  const { json } = await owner.post(`/v1/agents/${name}/invoke`, { input: "Look." });
  expect(json).toMatchObject({ status: "completed", output: "Done." });
  const events = await host.app.db
    .selectFrom("agent_events")
    .select("data")
    .where("run_id", "=", json.run_id)
    .where("type", "=", "model.images_refused")
    .execute();
  expect(events).toEqual([{ data: { step: 2, model: "scripted" } }]);
});
