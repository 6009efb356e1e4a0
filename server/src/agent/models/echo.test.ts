/** The model `echo` in agents without a model credential. */
import { expect, test } from "vitest";
import { agentHost } from "../testing/agent-app.ts";
import { startToolServer } from "../testing/tool-server.ts";
import { echoReply } from "./echo-reply.ts";

const shop = await startToolServer();
const host = await agentHost({ config: { allowPrivateHosts: "127.0.0.0/8" } });
const owner = await host.person();
const echo = { provider: "echo", id: "echo" };

test("the model echo returns the last input as its answer, without a credential", async () => {
  expect((await owner.post("/v1/agents", { name: "parrot", config: { model: echo } })).status).toBe(201);
  const first = await owner.post("/v1/agents/parrot/invoke", { input: "Good day,\n  Ada. 😀" });
  expect(first.json).toMatchObject({ status: "completed", output: "Good day,\n  Ada. 😀" });
  const second = await owner.post("/v1/agents/parrot/invoke", {
    input: "And now?",
    session_id: first.json.session_id,
  });
  expect(second.json).toMatchObject({ status: "completed", output: "And now?" });
  const run = await owner.get(`/v1/agents/runs/${second.json.run_id}`);
  expect(run.json.tokens.input).toBeGreaterThan(0);
});

test("the model echo calls the tools that the input names, and returns their results", async () => {
  const parameters = { type: "object", properties: { number: { type: "string" } }, required: ["number"] };
  const toolset = await owner.post("/v1/agent-toolsets", {
    name: "shop",
    kind: "http",
    url: shop.url,
    http_tools: [
      {
        name: "order",
        description: "Looks up an order.",
        method: "GET",
        path: "/orders/{number}",
        parameters,
      },
    ],
  });
  const config = { model: echo, toolsets: [{ toolset_id: toolset.json.id }] };
  await owner.post("/v1/agents", { name: "clerk", config });
  const input = 'Two orders, please:\ncall shop__order {"number": "17"}\ncall shop__order {"number": "18"}';
  const ran = await owner.post("/v1/agents/clerk/invoke", { input });
  expect(ran.json).toMatchObject({ status: "completed", output: '{"ok":true}\n{"ok":true}' });
  expect(shop.asked.map(({ path }) => path).toSorted()).toEqual(["/api/orders/17", "/api/orders/18"]);
  const refused = await owner.post("/v1/agents/clerk/invoke", { input: 'call shop__order {"number": 17}' });
  expect(refused.json.status).toBe("completed");
  expect(shop.asked).toHaveLength(2);
  const unknown = await owner.post("/v1/agents/clerk/invoke", { input: "call shop__refund {}" });
  expect(unknown.json.output).toBe("There is no tool shop__refund. Tools: shop__order.");
});

test("requires a credential for every provider except echo", async () => {
  const { status, json } = await owner.post("/v1/agents", {
    name: "other",
    config: { model: { provider: "openai", id: "gpt-5" } },
  });
  expect([status, json.pointer]).toEqual([400, "/config/model/credential_id"]);
  expect(json.detail).toContain("is required for openai");
  const both = await owner.post("/v1/agents", {
    name: "other",
    config: { model: { ...echo, credential_id: "mcr_1" } },
  });
  expect(both.json.detail).toContain("echo has no credential");
  const stored = await owner.post("/v1/model-credentials", { provider: "echo", name: "x", api_key: "none" });
  expect(stored.status).toBe(400);
});

test("limits the length of an answer of echo and the number of its calls", () => {
  const long = echoReply({ input: "a".repeat(1_000_000) }, []);
  expect(long).toEqual({ text: `${"a".repeat(100_000)}…` });
  const many = echoReply({ input: "call t {}\n".repeat(500) }, ["t"]);
  expect("calls" in many && many.calls).toHaveLength(20);
  expect(echoReply({ input: "call me tomorrow" }, ["t"])).toEqual({ text: "call me tomorrow" });
  expect(echoReply({ input: "call t {broken" }, ["t"])).toEqual({ text: "call t {broken" });
});
