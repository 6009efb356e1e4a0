/** docs/agents.md, run as a reader would paste it. */
import { expect, test } from "vitest";
import { agentHost, type Json } from "./testing/agent-app.ts";
import { startEverything } from "./testing/mcp-server.ts";
import { startModelServer } from "./testing/model-server.ts";
import { runPage } from "./testing/page.ts";
import { startToolServer } from "./testing/tool-server.ts";

const model = await startModelServer();
const shop = await startToolServer();
const server = await startEverything("streamableHttp");
const host = await agentHost();
const owner = await host.person();

/** A model that knows what the page's questions are. */
function answerPage({ messages, tools, response_format }: Json) {
  const last = messages.at(-1);
  if (response_format) return { text: ['{"city":"Bremen"}'] };
  if (last.role === "user" && JSON.stringify(last).includes("Add up 17"))
    return { calls: [{ name: "books__get-sum", arguments: '{"a":17,"b":25}' }] };
  if (last.role === "tool" && JSON.stringify(last).includes("42")) return { text: ["It is 42."] };
  if (tools && last.role === "user")
    return { calls: [{ name: "shop__order", arguments: '{"number":"17"}' }] };
  return { text: JSON.stringify(messages).includes("Ada") ? ["You are Ada."] : ["Good day."] };
}

test("the page of agents does what it says", async () => {
  model.script(answerPage);
  await runPage("agents.md", {
    base: host.baseUrl,
    token: owner.token,
    model: model.url,
    shop: shop.url,
    server,
  });
  expect(shop.asked.map(({ path }) => path)).toEqual(["/api/orders/17"]);
});
