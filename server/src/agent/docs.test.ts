/** docs/agents.md, run as a reader would paste it. */
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { agentHost, type Json } from "./testing/agent-app.ts";
import { startModelServer } from "./testing/model-server.ts";
import { startToolServer } from "./testing/tool-server.ts";

const model = await startModelServer();
const shop = await startToolServer();
const host = await agentHost();
const owner = await host.person();
const page = readFileSync(new URL("../../../docs/agents.md", import.meta.url), "utf8");

/** A model that knows what the page's questions are. */
function answerPage({ messages, tools, response_format }: Json) {
  const last = messages.at(-1);
  if (response_format) return { text: ['{"city":"Bremen"}'] };
  if (tools && last.role === "user")
    return { calls: [{ name: "shop__order", arguments: '{"number":"17"}' }] };
  return { text: JSON.stringify(messages).includes("Ada") ? ["You are Ada."] : ["Good day."] };
}

test("the page of agents does what it says", async () => {
  model.script(answerPage);
  const code = [...page.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block]) => block ?? "").join("\n");
  const script = code
    .replace(/^base=.*$/m, `base=${host.baseUrl}`)
    .replace(/^token=.*$/m, `token=${owner.token}`)
    .replace(/^model=.*$/m, `model=${model.url}`)
    .replace(/^shop=.*$/m, `shop=${shop.url}`);
  const { stdout } = await promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], {
    timeout: 25_000,
  });
  let rest = stdout;
  for (const [, line = ""] of code.matchAll(/^# → (.*)$/gm)) {
    const parts = line.split("…").map((part) => RegExp.escape(part));
    const at = new RegExp(parts.join("[^]*?")).exec(rest);
    expect(at, `no "${line}" in:\n${rest}`).not.toBeNull();
    rest = rest.slice((at?.index ?? 0) + (at?.[0].length ?? 0));
  }
  expect(shop.asked.map(({ path }) => path)).toEqual(["/api/orders/17"]);
});
