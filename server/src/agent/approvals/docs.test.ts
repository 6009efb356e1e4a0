/** docs/agent-approvals.md, run as a reader would paste it. */
import { expect, test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { runPage } from "../testing/page.ts";
import { startToolServer } from "../testing/tool-server.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();

/** A model that does what it is asked for. */
function answerPage({ messages }: Json) {
  const { role, content } = messages.at(-1);
  if (role === "tool") return { text: ["It is refunded."] };
  const numbers: string[] = content.match(/\d+/g) ?? [];
  return {
    calls: numbers.map((number) => ({ name: "shop__refund", arguments: JSON.stringify({ number }) })),
  };
}

test("the page of approvals does what it says", async () => {
  model.script(answerPage);
  await runPage("agent-approvals.md", {
    base: host.baseUrl,
    token: owner.token,
    model: model.url,
    shop: shop.url,
  });
  expect(shop.asked.map(({ path, body }) => path + body).toSorted()).toEqual(
    ["17", "20", "22"].map((number) => `/api/refunds{"number":"${number}"}`),
  );
});
