/** Repeated streaming invokes with the same `Idempotency-Key`. */
import { expect, test } from "vitest";
import { agentHost, modelConfig } from "#agent/testing/agent-app.ts";
import { readFrames } from "#agent/testing/events.ts";
import { startModelServer } from "#agent/testing/model-server.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();
const config = await modelConfig(owner, model.url);
await owner.post("/v1/agents", { name: "teller", config });

function invoke(key: string, more: object = {}, options: { lastEventId?: number; most?: number } = {}) {
  return readFrames(`${host.baseUrl}/v1/agents/teller/invoke`, {
    token: owner.token,
    method: "POST",
    body: { input: "Tell me.", stream: true, ...more },
    headers: { "idempotency-key": key },
    ...options,
  });
}

test("streams the first run again when its key is repeated, from its start or from Last-Event-ID", async () => {
  model.script([{ text: ["Once ", "upon a time."] }]);
  const first = await invoke("again");
  const second = await invoke("again");
  expect(second.frames).toEqual(first.frames);
  expect(second.headers.get("idempotent-replayed")).toBe("true");
  expect(first.headers.get("idempotent-replayed")).toBeNull();
  const rest = await invoke("again", {}, { lastEventId: 2 });
  expect(rest.frames).toEqual(first.frames.slice(2));
  expect(model.asked).toHaveLength(1);
});

test("streams the first run again while its first stream is open, and after the client disconnected", async () => {
  const held = Promise.withResolvers<void>();
  model.script([{ text: ["Once."], until: held.promise }]);
  const gone = await invoke("beside", {}, { most: 1 });
  const readers = Promise.all([invoke("beside"), invoke("beside")]);
  // Both streams open before the model has responded.
  await expect.poll(() => model.asked.length, { timeout: 20_000 }).toBe(1);
  held.resolve();
  const [one, other] = await readers;
  expect(one.frames).toEqual(other.frames);
  expect(one.frames[0]).toEqual(gone.frames[0]);
  expect(one.frames.at(-1)!.event).toBe("run.completed");
  expect(model.asked).toHaveLength(1);
});

test("rejects the idempotency key of a stream with another body", async () => {
  model.script([{ text: ["Once."] }]);
  await invoke("body");
  const { status, text } = await invoke("body", { input: "Something else." });
  expect([status, JSON.parse(text).code]).toEqual([409, "idempotency_conflict"]);
});
