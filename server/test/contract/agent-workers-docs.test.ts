/** docs/agent-workers.md, run as a reader would paste it. */
import { test } from "vitest";
import { startModelServer } from "#agent/testing/model-server.ts";
import { runPage } from "#agent/testing/page.ts";
import { openWorld } from "./world.ts";

const model = await startModelServer();
const world = await openWorld({ agents: (api) => api });

test("the page of agents that act does what it says", async () => {
  model.script(({ messages }) => {
    const last = messages.at(-1);
    const [, name] = /project called ([a-z-]+)/.exec(JSON.stringify(last)) ?? [];
    if (last.role !== "user" || name === undefined) return { text: ["Very well."] };
    return { calls: [{ name: "kontor__create_project", arguments: JSON.stringify({ name }) }] };
  });
  await runPage("agent-workers.md", {
    base: await world.listen(),
    token: world.owner.token,
    model: model.url,
  });
});
