/** Runs the commands of docs/agents/tools.md as printed. */
import { test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { startEverything } from "../testing/mcp-server.ts";
import { startModelServer } from "../testing/model-server.ts";
import { runPage } from "../testing/page.ts";

const model = await startModelServer();
const server = await startEverything("streamableHttp");
const host = await agentHost();
const owner = await host.person();

test("the commands of the page about tools run as printed", async () => {
  const form = [{ name: "everything__trigger-elicitation-request", arguments: "{}" }];
  const sum = [{ name: "everything__get-sum", arguments: '{"a":17,"b":25}' }];
  model.script(({ messages }: Json) => {
    const { role, content } = messages.at(-1);
    if (role !== "user") return { text: ["It is 42."] };
    return { calls: JSON.stringify(content).includes("details") ? form : sum };
  });
  await runPage("agents/tools.md", { base: host.baseUrl, token: owner.token, model: model.url, server });
});
