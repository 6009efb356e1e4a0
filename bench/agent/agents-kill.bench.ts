/**
 * Kills the server (`kill -9`) twenty times, each time during ten agent runs. Measures whether every run ends, whether
 * a tool with side effects is called twice for one call, and the time until the runs continue.
 *
 * The kills come at random moments, so they interrupt any step of the journal. The tests of `runs/` check each step
 * alone.
 */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import type { Server } from "../../e2e/support/server.ts";
import { makeParts } from "../support/agent-parts.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { startScriptedModel } from "../support/scripted-model.ts";

export const name = "agents-kill";

const kills = 20;
const runsEach = 10;
const toolCalls = 5;
/** Approximate duration in milliseconds of a run without a kill. */
const killWithinMs = 600;
const endsWithinMs = 60_000;

export async function run(context: BenchContext): Promise<void> {
  const model = await startScriptedModel();
  const desk = await startDesk();
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8", KONTOR_RATE_LIMITS: "off" };
  try {
    await withOwnServer(context, env, async (server, api) => {
      model.answer = ({ messages }) =>
        messages.filter(({ role }: { role: string }) => role === "tool").length < toolCalls
          ? { text: ["Now.", " "], delayMs: 20, call: { name: "desk__mark", arguments: "{}" } }
          : { text: ["Done."] };
      await makeAgent(api, model.url, desk.url);
      const unended: string[] = [];
      const onAfter: number[] = [];
      for (let kill = 0; kill < kills; kill += 1) {
        context.progress(`killed ${kill} times`, kill / kills);
        const runs = await Promise.all(Array.from({ length: runsEach }, () => startRun(api)));
        await sleep(Math.random() * killWithinMs);
        await server.kill9();
        const [killedMs, asked] = [performance.now(), model.asked.length];
        await server.start();
        unended.push(...(await findUnendedRuns(server, runs)));
        const next = model.asked[asked];
        if (next) onAfter.push(next.heardMs - killedMs);
        await Promise.all(runs.map(({ session_id }) => end(api, session_id)));
      }
      const note = `${kills} kills, ${runsEach} runs each`;
      const none = { atMost: 0 };
      context.report({ what: "runs that did not end", value: unended.length, unit: "runs", bar: none, note });
      const twice = [...desk.calls.values()].filter((count) => count > 1).length;
      const noteOfCalls = `${desk.calls.size} calls`;
      context.report({
        what: "calls made twice",
        value: twice,
        unit: "calls",
        bar: none,
        note: noteOfCalls,
      });
      context.report({
        what: "from the kill to the next step of a run, p50",
        value: percentile(onAfter, 50),
        unit: "ms",
        samples: onAfter,
        note: "with the start of the server",
      });
      const slowest = percentile(onAfter, 100);
      context.report({ what: "the slowest of them", value: slowest, unit: "ms", bar: { atMost: 10_000 } });
    });
  } finally {
    model.close();
    desk.close();
  }
}

async function makeAgent(api: Api, modelUrl: string, toolsUrl: string): Promise<void> {
  const tool = { name: "mark", method: "POST" } as const;
  const { model, toolset_id } = await makeParts(api, { modelUrl, toolsUrl, tool });
  const config = { model, toolsets: [{ toolset_id }] };
  await api.json("POST", "/v1/agents", 201, { name: "marker", config });
}

interface StartedRun {
  run_id: string;
  session_id: string;
}

function startRun(api: Api): Promise<StartedRun> {
  return api.json<StartedRun>("POST", "/v1/agents/marker/invoke", 202, { input: "Go.", wait_s: 0 });
}

async function end(api: Api, sessionId: string): Promise<void> {
  const { status } = await api.send("DELETE", `/v1/agents/marker/sessions/${sessionId}`);
  if (status >= 300) throw new Error(`DELETE session: ${status}`);
}

/** Returns the ids of runs that are not completed at the deadline. */
async function findUnendedRuns(server: Server, runs: readonly StartedRun[]): Promise<string[]> {
  let waiting = runs.map(({ run_id }) => run_id);
  for (const deadline = Date.now() + endsWithinMs; waiting.length > 0 && Date.now() < deadline;) {
    await sleep(50);
    const rows = await server.sql("select id, status from agent_runs where id = any($1)", [waiting]);
    waiting = rows.filter(({ status }) => status !== "completed").map(({ id }) => String(id));
  }
  return waiting;
}

interface Desk {
  url: string;
  /** Number of calls of the tool for each call id. */
  calls: Map<string, number>;
  close(): void;
}

async function startDesk(): Promise<Desk> {
  const calls = new Map<string, number>();
  const server = createServer((request, response) => {
    const id = String(request.headers["idempotency-key"]);
    calls.set(id, (calls.get(id) ?? 0) + 1);
    request.resume();
    setTimeout(() => response.writeHead(200).end('{"marked":true}'), 20);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
