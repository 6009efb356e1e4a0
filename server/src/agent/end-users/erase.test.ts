import { setTimeout as sleep } from "node:timers/promises";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { mintRunToken } from "#accounts/tokens/run-tokens.ts";
import { newId } from "#lib/ids.ts";
import { agentTasks } from "../jobs.ts";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { startModelServer } from "../testing/model-server.ts";
import { startToolServer } from "../testing/tool-server.ts";
import { rowsWith, tablesWithColumn } from "../testing/whole-database.ts";

const model = await startModelServer();
const tools = await startToolServer();
const host = await agentHost();
const { db } = host.app;
const owner = await host.person();
let made = 0;

const tool = (name: string) => ({
  name,
  description: `Is called ${name}.`,
  method: "GET",
  path: `/${name}`,
  parameters: { type: "object" },
});

/** Creates an agent with memory and two tools, of which one requires approval. */
async function agentOf(person: Person): Promise<string> {
  made += 1;
  const { json: toolset } = await person.post("/v1/agent-toolsets", {
    name: `desk${made}`,
    kind: "http",
    url: tools.url,
    http_tools: [tool("find"), tool("act")],
  });
  const config = {
    ...(await modelConfig(person, model.url)),
    toolsets: [{ toolset_id: toolset.id, tools: { act: { policy: "ask" } } }],
    memory: {},
  };
  const name = `agent-${made}`;
  expect((await person.post("/v1/agents", { name, config })).status).toBe(201);
  return name;
}

const call = (name: string, values: object) => ({ calls: [{ name, arguments: JSON.stringify(values) }] });

/** Inserts a finished sign-in to the agent's toolset, and a sign-in that is in progress. */
async function signIn(agent: string, endUserId: string, word: string): Promise<void> {
  await sql`insert into agent_connections (id, toolset_id, end_user_id, connected_at, sealed, provider)
    select ${`con_${word}`}, id, ${endUserId}, now(), '\\x00', '{}' from agent_toolsets
    where name = ${agent.replace("agent-", "desk")}`.execute(db);
  await sql`insert into agent_connect_links (nonce_hash, toolset_id, end_user_id, return_url, created_at, expires_at)
    select ${Buffer.from(word)}::bytea, id, ${endUserId}, ${`https://example.com/${word}`}, now(), now() from agent_toolsets
    where name = ${agent.replace("agent-", "desk")}`.execute(db);
}

/**
 * Creates three sessions of one end user, with `word` in every field. The sessions are open, ended, and waiting for a
 * decision. Returns every identifier.
 */
async function live(person: Person, agent: string, endUserId: string, word: string): Promise<string[]> {
  const desk = agent.replace("agent-", "desk");
  const ask = async (body: object, headers: Record<string, string> = {}): Promise<Json> =>
    (await person.call("POST", `/v1/agents/${agent}/invoke`, { ...body, end_user_id: endUserId }, headers))
      .json;
  tools.answer = (_, response) => response.end(`${word}-result`);
  model.script([
    call(`${desk}__find`, { about: `${word}-argument` }),
    { ...call("memory_save", { key: `${word}_key`, value: `${word}-fact` }), reasoning: [`${word}-thought`] },
    call(`${desk}__act`, { about: `${word}-asked` }),
    { text: [`${word}-answer`] },
  ]);
  const first = await ask(
    { input: `${word}-input`, messages: [{ role: "user", content: `${word}-history` }] },
    { "idempotency-key": `${word}-idempotency` },
  );
  expect(first.status, JSON.stringify(first)).toBe("pending_approval");
  await person.post(`/v1/agents/runs/${first.run_id}/approvals/${first.approval.request_id}`, {
    decision: "approve",
    arguments: { about: `${word}-changed` },
  });
  await host.runs.waitForOutcome(first.run_id, 20_000);
  expect((await person.get(`/v1/agents/runs/${first.run_id}`)).json.output).toBe(`${word}-answer`);
  model.script([{ text: [`${word}-second`] }]);
  const second = await ask({ input: word });
  await person.call("DELETE", `/v1/agents/${agent}/sessions/${second.session_id}`);
  model.script([call(`${desk}__act`, { about: `${word}-undecided` })]);
  const third = await ask({ input: word });
  expect(third.status).toBe("pending_approval");
  await signIn(agent, endUserId, word);
  await waitOf(third.run_id, endUserId, person);
  await turnOf(third, word, person);
  const trigger = { end_user_id: endUserId, session: word };
  await person.post(`/v1/agents/${agent}/webhooks`, { name: word, ...trigger });
  await person.post(`/v1/agents/${agent}/schedules`, { schedule: "daily", message: word, ...trigger });
  return [word, endUserId, ...[first, second, third].flatMap((run) => [run.session_id, run.run_id])];
}

/** Inserts the input of a run that waits for its turn. A delivery to a busy session inserts the same row. */
async function turnOf(run: Json, word: string, { workspaceId }: Person): Promise<void> {
  await sql`insert into agent_turns (run_id, session_id, workspace_id, message, in_flight_max, expires_at)
    values (${run.run_id}, ${run.session_id}, ${workspaceId}, ${JSON.stringify({ word })}, 1, now() + interval '1 day')`.execute(
    db,
  );
}

/** Inserts a wait for a sign-in. A tool call that needs a sign-in inserts the same row. */
async function waitOf(runId: string, endUserId: string, { workspaceId }: Person): Promise<void> {
  await sql`insert into agent_sign_in_waits
    select id, run_id, ${workspaceId}, toolset_id, ${endUserId}, null, 'cancelled', now(), now()
    from agent_tool_calls where run_id = ${runId} limit 1`.execute(db);
}

/** Inserts the machine of a session whose sandbox no longer exists. */
async function machineOf(session: string, workspaceId: string): Promise<void> {
  await sql`insert into agent_machines
    values (${session}, ${workspaceId}, ${newId("sbx_")}, 'awake', 300, now(), null)`.execute(db);
}

/** Returns a word that differs in each retry of a test. */
const canary = (name: string): string => `canary${name}${(made += 1)}`;

/** Mints a token. A run mints the same token to act on the platform. */
async function tokenOf(runId: string, agent: string, { workspaceId }: Person): Promise<void> {
  const { worker_id } = (await owner.get(`/v1/agents/${agent}`)).json;
  const worker = { workspaceId, workerId: worker_id, label: agent };
  await mintRunToken(host.app, { worker, runId, scopes: ["platform:read"], expiresInMs: 60_000 });
}

const eraseAs = (person: Person, agent: string, endUserId: string) =>
  person.call("DELETE", `/v1/agents/${agent}/end-users/${encodeURIComponent(endUserId)}`);

async function jobsDone(): Promise<void> {
  const countJobs = async () =>
    (await sql`select from graphile_worker._private_jobs`.execute(db)).rows.length;
  while ((await countJobs()) > 0) await sleep(20);
}

/** Tables of agents without data of an end user. The test expects rows of the end user in every other table. */
const impersonal = [
  "agent_aliases",
  "agent_pauses",
  "agent_toolsets",
  "agent_versions",
  // These tables contain ids of runs, but no data of an end user.
  "agent_schedule_ticks",
  "agent_webhook_deliveries",
  // OAuth clients belong to a server, not to a person.
  "agent_oauth_clients",
];

test("erasing an end user removes every row that names this end user, and no row of other end users", async () => {
  const agent = await agentOf(owner);
  const other = await agentOf(owner);
  const stranger = await host.person();
  const strangers = await agentOf(stranger);
  const endUser = "ada.lovelace@example.com";
  const word = canary("ada");
  const ada = await live(owner, agent, endUser, word);
  await machineOf(ada[2]!, owner.workspaceId);
  await tokenOf(ada[3]!, agent, owner);
  const others = [
    ...(await live(owner, agent, "bob", canary("bob"))),
    ...(await live(owner, other, endUser, canary("other"))),
    ...(await live(stranger, strangers, endUser, canary("stranger"))),
  ].filter((word) => word !== endUser && word !== "bob");

  const before = await rowsWith(db, ada);
  const personal = await tablesWithColumn(db, ["end_user_id", "session_id", "run_id"]);
  const ours = await sql<{ name: string }>`select table_name as name from information_schema.tables
    where table_schema = 'public' and starts_with(table_name, 'agent_')`.execute(db);
  // A new table is listed as impersonal above, or `live` inserts rows into the table.
  const expected = new Set([...personal, ...ours.rows.map(({ name }) => name)]).difference(
    new Set(impersonal),
  );
  expect([...expected].filter((name) => !before.has(name))).toEqual([]);
  expect(["idempotency_keys", "activity", "notifications"].every((name) => before.has(name))).toBe(true);
  const othersBefore = await rowsWith(db, others);

  const { status, json } = await eraseAs(owner, agent, endUser);
  expect([status, json]).toEqual([
    200,
    { end_user_id: endUser, sessions: 3, vms_destroyed: 1, memory_entries: 1, connections: 1, triggers: 2 },
  ]);
  await host.app.jobs.startWorker(agentTasks(host.app));
  await jobsDone();
  const [, , ...hers] = ada;
  expect(await rowsWith(db, [word, ...hers])).toEqual(new Map());
  // Another agent and another account have end users of their own with the same id.
  const named = (await rowsWith(db, [endUser])).values().toArray().flat();
  expect(named.filter((row) => !others.some((word) => row.includes(word)))).toEqual([]);
  expect(await rowsWith(db, others)).toEqual(othersBefore);

  const usage = (await owner.get(`/v1/agents/${agent}/usage`)).json;
  expect(usage.end_users.map((row: Json) => row.end_user_id)).toEqual(["bob"]);
  expect(usage.totals.runs).toBe(3);
  expect(usage.by_model).toMatchObject([{ calls: 6 }]);
  expect((await owner.get(`/v1/agents/${agent}/sessions/${ada[2]}`)).status).toBe(404);
  expect((await owner.get(`/v1/agents/runs/${ada[3]}`)).status).toBe(404);
});

test("logs an erasure with a hash that is equal only for erasures of the same end user", async () => {
  const agent = await agentOf(owner);
  for (const name of ["grace", "grace", "hedy"]) await eraseAs(owner, agent, name);
  const { id } = (await owner.get(`/v1/agents/${agent}`)).json;
  const rows = await db
    .selectFrom("activity")
    .selectAll()
    .where("action", "=", "agent.end_user_erased")
    .where("target_id", "=", id)
    .orderBy("at")
    .execute();
  const hashes = rows.map(({ detail }) => detail["end_user_hash"]);
  expect(hashes[0]).toMatch(/^[0-9a-f]{32}$/);
  expect([hashes[0] === hashes[1], hashes[0] === hashes[2]]).toEqual([true, false]);
});

test("returns zero counts for the erasure of an unknown end user, and rejects the id `-`", async () => {
  const agent = await agentOf(owner);
  const none = { sessions: 0, vms_destroyed: 0, memory_entries: 0, connections: 0, triggers: 0 };
  expect((await eraseAs(owner, agent, "nobody")).json).toEqual({ end_user_id: "nobody", ...none });
  expect(await eraseAs(owner, agent, "-")).toMatchObject({ status: 400, json: { pointer: "/end_user_id" } });
});

test("an erasure cancels the end user's run in flight, and stores no later output of its model and tools", async () => {
  const agent = await agentOf(owner);
  const desk = agent.replace("agent-", "desk");
  const may = Promise.withResolvers<void>();
  const asked = Promise.withResolvers<void>();
  tools.answer = (_, response) => {
    asked.resolve();
    void may.promise.then(() => response.end("canarylate-result"));
  };
  model.script((body: Json) =>
    body.messages.at(-1).content === "tool"
      ? call(`${desk}__find`, { about: "canarylate-argument" })
      : { text: ["canarylate-answer"], until: may.promise },
  );
  const invoke = (input: string) =>
    owner.post(`/v1/agents/${agent}/invoke`, { input, end_user_id: "canarylate" });
  const waiting = [invoke("tool"), invoke("model")];
  await asked.promise;
  while (model.asked.length < 2) await sleep(5);
  const { json } = await owner.get(`/v1/agents/runs?agent=${agent}`);
  const streams = json.items.map(({ run_id }: Json) =>
    readFrames(`${host.baseUrl}/v1/agents/runs/${run_id}/stream`, { token: owner.token }),
  );
  expect((await eraseAs(owner, agent, "canarylate")).json.sessions).toBe(2);
  // Waiting invokes and streams end before more output arrives.
  expect((await Promise.all(waiting)).map((reply) => reply.status)).toEqual([404, 404]);
  await Promise.all(streams);
  may.resolve();
  const ids = json.items.flatMap(({ run_id, session_id }: Json) => [run_id, session_id]);
  await host.runs.stop();
  expect(await rowsWith(db, ["canarylate", ...ids])).toEqual(new Map());
});
