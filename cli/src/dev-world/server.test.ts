/** The model, the shop and the webhook receiver of the dev world over HTTP. */
import { afterAll, expect, test } from "vitest";
import { startDevWorld } from "./server.ts";

const printed: string[] = [];
const world = await startDevWorld(0, (line) => printed.push(line));
afterAll(() => world.close());

async function chat(request: object): Promise<string> {
  const response = await fetch(`${world.url}/v1/chat/completions`, {
    method: "POST",
    body: JSON.stringify(request),
  });
  return response.text();
}

const tools = [{ type: "function", function: { name: "order", parameters: {} } }];

test("the model returns the last input, as one response and as a stream", async () => {
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "Good day." }] },
  ];
  const whole = JSON.parse(await chat({ messages })) as {
    choices: unknown[];
    usage: { prompt_tokens: number };
  };
  expect(whole.choices).toEqual([
    { index: 0, message: { role: "assistant", content: "Good day." }, finish_reason: "stop" },
  ]);
  expect(whole.usage.prompt_tokens).toBeGreaterThan(0);
  const events = (await chat({ messages, stream: true })).split("\n\n");
  expect(events[0]).toContain('"delta":{"role":"assistant","content":"Good day."}');
  expect(events.at(-2)).toBe("data: [DONE]");
});

test("the model calls the tool that the input names, and returns the tool's result", async () => {
  const asking = [{ role: "user", content: 'call order {"number": "17"}' }];
  expect(await chat({ messages: asking, tools })).toContain(
    '"function":{"name":"order","arguments":"{\\"number\\": \\"17\\"}"}',
  );
  const answered = [...asking, { role: "assistant", tool_calls: [] }, { role: "tool", content: "shipped" }];
  expect(await chat({ messages: answered, tools })).toContain('"content":"shipped"');
});

test("the model refuses a request without messages", async () => {
  for (const body of ["", "[]", "null", '{"messages": 1}', "{"]) {
    const response = await fetch(`${world.url}/v1/chat/completions`, { method: "POST", body });
    expect([body, response.status]).toEqual([body, 400]);
  }
  expect(await chat({ messages: [null, 1, { role: "user" }], tools: [null, {}] })).toContain('"content":""');
});

test("the shop serves orders and refunds", async () => {
  const order = await fetch(`${world.url}/shop/orders/17`);
  expect(await order.json()).toMatchObject({ number: "17", status: "shipped" });
  expect((await fetch(`${world.url}/shop/orders/%2e%2e`)).status).toBe(404);
  const refund = await fetch(`${world.url}/shop/refunds`, { method: "POST", body: '{"number": "17"}' });
  expect([refund.status, await refund.json()]).toEqual([201, { number: "17", refunded_eur: 30 }]);
  expect((await fetch(`${world.url}/shop/refunds`, { method: "POST", body: "17" })).status).toBe(400);
});

test("prints each delivery on one line without control characters, and lists the newest 100 deliveries", async () => {
  for (let number = 0; number <= 100; number += 1) {
    await fetch(`${world.url}/hooks/orders`, {
      method: "POST",
      body: `number ${number}\n\u001b[31m\u009b`,
      headers: { "x-service-signature": "sha256=00", authorization: "Bearer secret" },
    });
  }
  expect(printed).toHaveLength(101);
  expect(printed[100]).toMatch(/^\S+ \/hooks\/orders "number 100\\n\\u001b\[31m\ufffd"$/);
  const { deliveries } = (await (await fetch(`${world.url}/hooks`)).json()) as {
    deliveries: { path: string; headers: object; body: string }[];
  };
  expect(deliveries).toHaveLength(100);
  expect(deliveries[0]).toMatchObject({ path: "/hooks/orders", body: "number 100\n\u001b[31m\u009b" });
  expect(deliveries[0]?.headers).toMatchObject({ "x-service-signature": "sha256=00" });
  expect(JSON.stringify(deliveries)).not.toContain("secret");
});
