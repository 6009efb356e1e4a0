/** docs/agent-machines.md, on machines that are not real; e2e/agents.e2e.test.ts does the same on those that are. */
import { afterAll, test } from "vitest";
import type { Json } from "../testing/agent-app.ts";
import { host, model, owner } from "../testing/machine-host.ts";
import { runPage } from "../testing/page.ts";
import { startMachineCare } from "./park.ts";

const care = startMachineCare(host.app);
afterAll(() => care.stop());

/** A model that knows what the page's questions are. */
function answerPage({ messages }: Json) {
  const last = messages.at(-1);
  if (last.role === "tool") return { text: [String(last.content)] };
  const command = String(last.content).startsWith("Write")
    ? "for n in 1 2 3 4 5 6 7 8 9 10; do echo $((n * n)); done > squares.txt"
    : "tail -n 1 squares.txt";
  return { calls: [{ name: "exec", arguments: JSON.stringify({ command }) }] };
}

test("the page of machines does what it says", async () => {
  model.script(answerPage);
  await runPage("agent-machines.md", { base: host.baseUrl, token: owner.token, model: model.url });
});
