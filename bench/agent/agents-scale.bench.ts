/**
 * Ten thousand sessions that wait for a person, and the erasure of an end user with a thousand sessions. The API
 * creates the first session of each kind; the others are copies of its rows.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Server } from "../../e2e/support/server.ts";
import { makeParts } from "../support/agent-parts.ts";
import type { Api } from "../support/api.ts";
import type { BenchContext } from "../support/contract.ts";
import { percentile, measureTime } from "../support/measure.ts";
import { withOwnServer, withoutPool } from "../support/own-server.ts";
import { startScriptedModel } from "../support/scripted-model.ts";

export const name = "agents-scale";

const waiting = 10_000;
/** Wait in milliseconds in which the server's sweeps run several times. */
const settleMs = 15_000;

export async function run(context: BenchContext): Promise<void> {
  const model = await startScriptedModel();
  const env = { ...withoutPool, KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8", KONTOR_RATE_LIMITS: "off" };
  try {
    await withOwnServer(context, env, async (server, api) => {
      await makeAgents(api, model.url);
      model.answer = ({ messages }) =>
        messages.at(-1).role === "tool"
          ? { text: ["Done."] }
          : { call: { name: "desk__look", arguments: "{}" } };
      await manyWait(context, server, api);
      await erase(context, server, api);
    });
  } finally {
    model.close();
  }
}

async function makeAgents(api: Api, modelUrl: string): Promise<void> {
  const tool = { name: "look", method: "GET" } as const;
  const { model, toolset_id } = await makeParts(api, { modelUrl, toolsUrl: modelUrl, tool });
  for (const [agent, policy] of [
    ["asking", "ask"],
    ["clerk", "allow"],
  ]) {
    const config = { model, toolsets: [{ toolset_id, policy }] };
    await api.json("POST", "/v1/agents", 201, { name: agent, config });
  }
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

const sessions = 1_000;

/**
 * Measures the erasure of an end user with a thousand sessions. Each session has two runs that called a tool, with the
 * rows that the server writes.
 */
async function erase(context: BenchContext, server: Server, api: Api): Promise<void> {
  context.progress("erase an end user");
  const body = { input: "Go.", end_user_id: "bench" };
  const { run_id, session_id } = await api.json<Outcome>("POST", "/v1/agents/clerk/invoke", 200, body);
  const copy = (table: string, values: string, from = "") =>
    server.sql(
      `insert into ${table} select (jsonb_populate_record(t, ${values})).* from ${table} as t, generate_series(1, $1::int) as n ${from}`,
      [sessions - 1],
    );
  const session = `'${session_id}-' || n`;
  await copy("agent_sessions", `jsonb_build_object('id', ${session})`, `where t.id = '${session_id}'`);
  const run = `t.run_id || '-' || n`;
  for (const half of ["", "-b"]) {
    const mine = `where t.run_id = '${run_id}'`;
    const of = `${run} || '${half}'`;
    await copy(
      "agent_runs",
      `jsonb_build_object('id', t.id || '-' || n || '${half}', 'session_id', ${session})`,
      `where t.id = '${run_id}'`,
    );
    await copy("agent_steps", `jsonb_build_object('run_id', ${of})`, mine);
    await copy("agent_events", `jsonb_build_object('run_id', ${of})`, mine);
    await copy(
      "agent_tool_calls",
      `jsonb_build_object('run_id', ${of}, 'id', t.id || '-' || n || '${half}')`,
      mine,
    );
    const seq = half === "" ? "t.seq" : "t.seq + 100";
    await copy(
      "agent_messages",
      `jsonb_build_object('run_id', ${of}, 'session_id', ${session}, 'seq', ${seq})`,
      mine,
    );
  }
  const { ms } = await measureTime(async () => {
    const erased = await api.json<{ sessions: number }>("DELETE", "/v1/agents/clerk/end-users/bench", 200);
    if (erased.sessions !== sessions) throw new Error(JSON.stringify(erased));
  });
  for (const table of ["agent_runs", "agent_steps", "agent_events", "agent_messages", "agent_tool_calls"]) {
    const name = table === "agent_runs" ? "id" : "run_id";
    const [row] = await server.sql(`select count(*) as left from ${table} where ${name} like $1`, [
      `${run_id}%`,
    ]);
    if (Number(row?.["left"]) !== 0) throw new Error(`${table}: ${JSON.stringify(row)}`);
  }
  context.report({
    what: `erase an end user with ${sessions} sessions`,
    value: ms,
    unit: "ms",
    bar: { atMost: 10_000 },
    note: "n=1; two runs of two steps and a tool in each, no machines; nothing left",
  });
}

async function samplesOf(count: number, work: () => Promise<unknown>): Promise<number[]> {
  const samples: number[] = [];
  for (let n = 0; n < count; n += 1) samples.push((await measureTime(work)).ms);
  return samples;
}

/** Copies a session with all its rows, under new ids. */
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
