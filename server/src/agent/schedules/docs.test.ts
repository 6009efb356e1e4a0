/** docs/agent-triggers.md, run as a reader would paste it; only the minute is shorter. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, test } from "vitest";
import { agentHost } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { runPage } from "../testing/page.ts";
import { Scheduler } from "./scheduler.ts";

let aheadMs = 0;
const model = await startModelServer();
const host = await agentHost({ clock: { now: () => new Date(Date.now() + aheadMs) } });
const scheduler = new Scheduler(host.app, host.runs);
const owner = await host.person();

/** A minute passes with each request, and what is due by then has begun when it is answered. */
const minute = createServer((_, response) => {
  aheadMs += 61_000;
  void scheduler.look().finally(() => response.end());
});
await once(minute.listen(0, "127.0.0.1"), "listening");
afterAll(() => {
  minute.closeAllConnections();
  minute.close();
});

test("the page of triggers does what it says", async () => {
  model.script([{ text: ["Nothing is new."] }]);
  const { port } = minute.address() as AddressInfo;
  await runPage("agent-triggers.md", {
    base: host.baseUrl,
    token: owner.token,
    model: model.url,
    minute: `curl -sS http://127.0.0.1:${port}/`,
  });
});
