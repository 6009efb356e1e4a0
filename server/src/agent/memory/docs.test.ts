/** docs/agent-memory.md, run as a reader would paste it. */
import { test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { runPage } from "../testing/page.ts";

const model = await startModelServer();
const host = await agentHost();
const owner = await host.person();

/** A model that remembers where somebody lives. */
function answerPage({ messages }: Json) {
  const { role, content } = messages.at(-1);
  if (role === "user" && content.startsWith("I live in")) {
    const fact = { key: "city", value: content };
    return { calls: [{ name: "memory_save", arguments: JSON.stringify(fact) }] };
  }
  const knows = messages[0].role === "system" && messages[0].content.includes("Bremen");
  return { text: [knows ? "In Bremen." : "I do not know."] };
}

test("the page of memory does what it says", async () => {
  model.script(answerPage);
  await runPage("agent-memory.md", { base: host.baseUrl, token: owner.token, model: model.url });
});
