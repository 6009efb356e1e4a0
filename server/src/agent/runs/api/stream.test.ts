import { readUIMessageStream, uiMessageChunkSchema, type UIMessageChunk } from "ai";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { eventsAfter } from "../store.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
const { token } = owner;
await owner.post("/v1/agents", { name: "talker", config: await modelConfig(owner, model.url) });

const invoke = (body: object = {}) => owner.post("/v1/agents/talker/invoke", { input: "Hi", ...body });
const stream = (runId: string, options: { lastEventId?: number; most?: number; query?: string } = {}) =>
  readFrames(`${host.baseUrl}/v1/agents/runs/${runId}/stream${options.query ?? ""}`, { token, ...options });
const words = Array.from({ length: 40 }, (_, n) => `word${n} `);

test("numbers a run's events from 1 without gaps, as documented, up to the run's end", async () => {
  model.script([{ reasoning: ["Let me ", "think."], text: ["Good ", "day."] }]);
  const { json } = await invoke();
  const { frames, text, headers } = await stream(json.run_id);
  expect(headers.get("content-type")).toContain("text/event-stream");
  expect(text.startsWith("retry: 2000\n\n")).toBe(true);
  expect(frames.map(({ id }) => Number(id))).toEqual(frames.map((_, index) => index + 1));
  for (const { event, id, data } of frames)
    expect(data).toMatchObject({
      type: event,
      seq: Number(id),
      run_id: json.run_id,
      session_id: json.session_id,
      at: expect.stringMatching(/Z$/),
    });
  expect(frames.map(({ event }) => event).filter((type) => !type?.endsWith(".delta"))).toEqual([
    "run.queued",
    "run.started",
    "step.started",
    "message.started",
    "message.completed",
    "step.completed",
    "run.completed",
  ]);
  const textOf = (type: string) =>
    frames
      .filter(({ event }) => event === type)
      .map(({ data }) => data.delta)
      .join("");
  expect([textOf("reasoning.delta"), textOf("message.delta")]).toEqual(["Let me think.", "Good day."]);
  const of = (type: string) => frames.find(({ event }) => event === type)?.data;
  expect(of("run.started")).toMatchObject({ version: 1, attempt: 1 });
  expect(of("step.completed")).toMatchObject({
    step: 1,
    model: "scripted",
    tokens: { input: 10, output: 5 },
  });
  expect(of("run.completed")).toMatchObject({ output: "Good day.", tokens: { total: 15 } });
});

test("continues a stream after Last-Event-ID, during the run and after its end", async () => {
  model.script([{ text: words, delayMs: 15 }]);
  const { json } = await invoke({ wait_s: 0 });
  const seen: Json[] = [];
  for (;;) {
    const last = seen.at(-1)?.seq as number | undefined;
    const { frames } = await stream(json.run_id, {
      most: 3,
      ...(last === undefined ? {} : { lastEventId: last }),
    });
    seen.push(...frames.map(({ data }) => data));
    if (frames.at(-1)?.event === "run.completed") break;
  }
  expect(seen.map(({ seq }) => seq)).toEqual(seen.map((_, index) => index + 1));
  expect(seen.map(({ delta }) => delta ?? "").join("")).toBe(words.join(""));
  const whole = (await stream(json.run_id)).frames.map(({ data }) => data);
  expect(whole).toEqual(seen);
  for (let after = 0; after <= whole.length; after += 1) {
    const { frames } = await stream(json.run_id, { lastEventId: after });
    expect(frames.map(({ data }) => data)).toEqual(whole.slice(after));
  }
  expect((await stream(json.run_id, { lastEventId: 100_000 })).frames).toEqual([]);
});

test("streams all events of a run with large events, and reads them page by page", async () => {
  model.script([{ text: ["Hi"] }]);
  const { json } = await invoke();
  const { db } = host.app;
  const last = (await stream(json.run_id)).frames.length;
  // Some values are large but compress to a few kilobytes; others do not compress.
  const large = ["repeat('x', 2000000)", "repeat('y', 600000)", "repeat('z', 400000)", "repeat('w', 10)"];
  for (const [index, text] of large.entries())
    await sql`insert into agent_events (run_id, seq, type, at, data) values (${json.run_id}, ${last + index + 1},
      'note', now(), json_build_object('text', ${sql.raw(text)}))`.execute(db);
  await sql`insert into agent_events (run_id, seq, type, at, data) select ${json.run_id}, ${last} + n, 'note', now(),
    json_build_object('text', (select string_agg(md5(g::text || n), '') from generate_series(1, 20000) as g))
    from generate_series(5, 8) as n`.execute(db);
  await sql`insert into agent_events (run_id, seq, type, at, data)
    values (${json.run_id}, ${last + 9}, 'run.completed', now(), '{}')`.execute(db);
  const pages: number[][] = [];
  let seq = last;
  for (let isAll = false; !isAll;) {
    const page = await eventsAfter(db, json.run_id, seq, { rowsMax: 500, bytesMax: 2 ** 20 });
    pages.push(page.rows.map((row) => row.seq - last));
    seq = page.rows.at(-1)!.seq;
    isAll = page.isAll;
  }
  expect(pages).toEqual([[1], [2, 3, 4], [5], [6], [7], [8, 9]]);
  expect((await eventsAfter(db, json.run_id, seq, { rowsMax: 500, bytesMax: 1 })).isAll).toBe(true);
  const two = await eventsAfter(db, json.run_id, 0, { rowsMax: 2, bytesMax: 2 ** 20 });
  expect([two.rows.length, two.isAll]).toEqual([2, false]);
  const { frames } = await stream(json.run_id, { lastEventId: last });
  expect(frames.map(({ id }) => Number(id) - last)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9]);
});

test("streams a run's events from its invoke on, and continues the run after the client disconnects", async () => {
  model.script([{ text: words, delayMs: 10 }]);
  const url = `${host.baseUrl}/v1/agents/talker/invoke`;
  const body = { input: "Hi", stream: true };
  const whole = await readFrames(url, { token, method: "POST", body, lastEventId: 99 });
  expect(whole.frames.at(0)).toMatchObject({ id: "1", event: "run.queued" });
  expect(whole.frames.at(-1)?.data).toMatchObject({ type: "run.completed", output: words.join("") });
  const left = await readFrames(url, { token, method: "POST", body, most: 4 });
  const runId = left.frames[0]!.data.run_id as string;
  expect((await stream(runId)).frames.at(-1)?.event).toBe("run.completed");
});

test("streams events of a model's answer before the answer is complete", async () => {
  const may = Promise.withResolvers<void>();
  model.script([{ text: ["early"], until: may.promise }]);
  const { json } = await invoke({ wait_s: 0 });
  const begun = await stream(json.run_id, { most: 3 });
  expect(begun.frames.map(({ event }) => event)).toEqual(["run.queued", "run.started", "step.started"]);
  may.resolve();
  expect((await stream(json.run_id)).frames.at(-1)?.event).toBe("run.completed");
});

const chunkSchema = uiMessageChunkSchema();

async function chunksOf(runId: string, lastEventId?: number) {
  const { frames, headers } = await stream(runId, {
    query: "?format=ui",
    ...(lastEventId === undefined ? {} : { lastEventId }),
  });
  expect(headers.get("x-vercel-ai-ui-message-stream")).toBe("v1");
  expect(frames.at(-1)?.data).toBe("[DONE]");
  const chunks = frames.slice(0, -1);
  for (const { data } of chunks) {
    const result = await chunkSchema.validate!(data);
    expect(result, JSON.stringify(data)).toMatchObject({ success: true });
  }
  return chunks;
}

test("emits valid UI message chunks for the AI SDK, even after a retry and a failure", async () => {
  model.script([
    { reasoning: ["hm"], text: ["half"], cutAfter: 2, delayMs: 60 },
    { reasoning: ["well"], text: ["whole"] },
  ]);
  const { json } = await invoke();
  const chunks = await chunksOf(json.run_id);
  expect(chunks.map(({ data }) => data.type)).toEqual([
    "start",
    "start-step",
    "reasoning-start",
    "reasoning-delta",
    "reasoning-end",
    "text-start",
    "text-delta",
    "reset-step",
    "reasoning-start",
    "reasoning-delta",
    "reasoning-end",
    "text-start",
    "text-delta",
    "text-end",
    "finish-step",
    "finish",
  ]);
  model.script([{ status: 400 }]);
  const failed = await invoke();
  const types = (await chunksOf(failed.json.run_id)).map(({ data }) => data.type);
  expect(types.slice(-2)).toEqual(["error", "finish"]);
});

test("the AI SDK's reader shows an answer once after the model was called again", async () => {
  model.script([{ text: ["half ", "an answer"], cutAfter: 1, delayMs: 60 }, { text: ["whole"] }]);
  const { json } = await invoke();
  const chunks = (await chunksOf(json.run_id)).map(({ data }) => data as UIMessageChunk);
  expect(chunks).toContainEqual({ type: "reset-step" });
  let last: Json;
  const onError = (error: unknown) => {
    throw error;
  };
  for await (const message of readUIMessageStream({ stream: ReadableStream.from(chunks), onError }))
    last = message;
  expect(last.parts).toMatchObject([{ type: "step-start" }, { type: "text", text: "whole", state: "done" }]);
});

test("continues a UI message stream after any of its events", async () => {
  model.script([{ reasoning: ["hm"], text: words, delayMs: 15 }]);
  const { json } = await invoke();
  const whole = await chunksOf(json.run_id);
  for (const [index, { id }] of whole.entries()) {
    if (id === null) continue;
    const rest = await chunksOf(json.run_id, Number(id));
    expect(rest).toEqual(whole.slice(index + 1));
  }
});
