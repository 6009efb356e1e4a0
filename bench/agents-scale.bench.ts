/**
 * Ten thousand sessions that wait for a person. One is made by the API; the others are its copies, row by row.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Server } from "../e2e/server.ts";
import { makeParts } from "./agent-parts.ts";
import type { Api } from "./api.ts";
import type { BenchContext } from "./contract.ts";
import { percentile, timed } from "./measure.ts";
import { withOwnServer, withoutPool } from "./own-server.ts";
import { startScriptedModel } from "./scripted-model.ts";

export const name = "agents-scale";

const waiting = 10_000;
/** Sweeps and looks of the server go round in it. */
const settleMs = 15_000;

export async function run(context: BenchContext): Promise<void> {
  const model = await startScriptedModel();
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8", KONTOR_RATE_LIMITS: "off" };
  try {
    await withOwnServer(context, env, async (server, api) => {
      await makeAgent(api, model.url);
      model.answer = ({ messages }) =>
        messages.at(-1).role === "tool"
          ? { text: ["Done."] }
          : { call: { name: "desk__look", arguments: "{}" } };
      await manyWait(context, server, api);
    });
  } finally {
    model.close();
  }
}

async function makeAgent(api: Api, modelUrl: string): Promise<void> {
  const tool = { name: "look", method: "GET" } as const;
  const { model, toolset_id } = await makeParts(api, { modelUrl, toolsUrl: modelUrl, tool });
  const config = { model, toolsets: [{ toolset_id, policy: "ask" }] };
  await api.json("POST", "/v1/agents", 201, { name: "asking", config });
}

interface Outcome {
  run_id: string;
  session_id: string;
  status: string;
}

async function manyWait(context: BenchContext, server: Server, api: Api): Promise<void> {
  context.progress(`${waiting} sessions that wait`);
  const one = await api.json<Outcome>("POST", "/v1/agents/asking/invoke", 200, { input: "Go." });
  if (one.status !== "pending_approval") throw new Error(JSON.stringify(one));
  await sleep(settleMs);
  const before = server.residentBytes;
  await copies(server, one, waiting - 1);
  await sleep(settleMs);
  const list = await samplesOf(50, () => api.json("GET", "/v1/agents/approvals", 200));
  const runs = await samplesOf(50, () =>
    api.json("GET", "/v1/agents/runs?status=pending_approval&limit=100", 200),
  );
  const mib = (server.residentBytes - before) / 1024 ** 2;
  context.report({
    what: `${waiting} sessions wait: the server grew by`,
    value: mib,
    unit: "MiB",
    note: "after both lists were asked for 50 times; what one session would cost is a ten thousandth",
  });
  context.report({
    what: "list of what waits, p50",
    value: percentile(list, 50),
    unit: "ms",
    samples: list,
    bar: { atMost: 100 },
    note: `n=50, of ${waiting}`,
  });
  context.report({ what: "list of their runs, p50", value: percentile(runs, 50), unit: "ms", samples: runs });
  await server.sql("delete from agent_sessions where id like 'ses_copy%'", []);
}

async function samplesOf(count: number, work: () => Promise<unknown>): Promise<number[]> {
  const samples: number[] = [];
  for (let n = 0; n < count; n += 1) samples.push((await timed(work)).ms);
  return samples;
}

/** A session and all that hangs on it, so many times more, under other ids. */
async function copies(server: Server, { run_id, session_id }: Outcome, count: number): Promise<void> {
  const copy = (table: string, where: string, changed: string) =>
    server.sql(
      `insert into ${table} select (jsonb_populate_record(one, jsonb_build_object(${changed}))).*
       from ${table} as one, generate_series(1, ${count}) as n where ${where}`,
      [table === "agent_sessions" || table === "agent_messages" ? session_id : run_id],
    );
  const session = "'session_id', 'ses_copy' || n";
  const run = "'run_id', 'run_copy' || n";
  await copy("agent_sessions", "id = $1", "'id', 'ses_copy' || n");
  await copy("agent_runs", "id = $1", `'id', 'run_copy' || n, ${session}`);
  await copy("agent_messages", "session_id = $1", `${session}, ${run}`);
  await copy("agent_steps", "run_id = $1", run);
  await copy("agent_events", "run_id = $1", run);
  await copy("agent_tool_calls", "run_id = $1", `'id', one.id || n, ${run}`);
  await copy("agent_approvals", "run_id = $1", `'id', one.id || n, 'call_id', one.call_id || n, ${run}`);
  await server.sql("analyze", []);
}
