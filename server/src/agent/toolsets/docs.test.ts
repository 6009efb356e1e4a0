/** docs/agent-tools.md, run as a reader would paste it. */
import { test } from "vitest";
import { agentHost, type Json } from "../testing/agent-app.ts";
import { startEverything } from "../testing/mcp-server.ts";
import { startModelServer } from "../testing/model-server.ts";
import { runPage } from "../testing/page.ts";

const model = await startModelServer();
const server = await startEverything("streamableHttp");
const host = await agentHost();
const owner = await host.person();

test("the page of tools does what it says", async () => {
  model.script(({ messages }: Json) =>
    messages.at(-1).role === "user"
      ? { calls: [{ name: "everything__get-sum", arguments: '{"a":17,"b":25}' }] }
      : { text: ["It is 42."] },
  );
  await runPage("agent-tools.md", { base: host.baseUrl, token: owner.token, model: model.url, server });
});
