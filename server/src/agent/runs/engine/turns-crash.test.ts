/** Servers that are killed while they start a waiting run, and the next server that continues the run. */
import { randomBytes } from "node:crypto";
import { sql } from "kysely";
import { expect, test } from "vitest";
import { SecretBox } from "#lib/secret-box.ts";
import { agentHost, type Json, modelConfig } from "#agent/testing/agent-app.ts";
import { runUntilKilled } from "#agent/testing/killed-server.ts";
import { startModelServer } from "#agent/testing/model-server.ts";
import { RunExecutor } from "./run-executor.ts";
import { moveTurnDeadlines, startTurns } from "./turns.ts";

const key = randomBytes(32);
const model = await startModelServer();
// This server accepts deliveries and executes no runs. Other servers execute the runs.
const host = await agentHost({ secrets: new SecretBox(key), isIdle: true });
const owner = await host.person();
await owner.post("/v1/agents", { name: "chatting", config: await modelConfig(owner, model.url) });

test.each(["agent.turn.commits", "agent.turn.committed"])(
  "adds a waiting delivery to the conversation once after a kill at %s",
  async (point) => {
    model.script([{ text: ["Yes."] }]);
    const { json: hook } = await owner.post("/v1/agents/chatting/webhooks", {
      name: "chat",
      input_template: "{{body.text}}",
      session: "{{body.thread}}",
    });
    const deliver = async (text: string): Promise<Json> => {
      const response = await fetch(`${host.baseUrl}/v1/hooks/agents/${hook.id}`, {
        method: "POST",
        headers: { authorization: `Bearer ${hook.secret}` },
        body: JSON.stringify({ text, thread: point }),
      });
      expect(response.status).toBe(202);
      return await response.json();
    };
    const first = await deliver("one");
    const second = await deliver("two");
    await host.app.db.updateTable("agent_runs").set({ process_id: null }).execute();
    expect(await runUntilKilled(host.connection, key, point)).toBe("SIGKILL");
    const next = new RunExecutor(host.app, { hostId: "crashing", pauseMs: 5 });
    try {
      await next.start();
      for (const { run_id } of [first, second]) await next.waitForOutcome(run_id, 20_000);
    } finally {
      await next.stop();
    }
    expect((await owner.get(`/v1/agents/runs/${second.run_id}`)).json).toMatchObject({
      status: "completed",
      steps: 1,
    });
    const { items } = (await owner.get(`/v1/agents/chatting/sessions/${first.session_id}/messages`)).json;
    expect(items.map(({ content }: Json) => content[0].text)).toEqual(["one", "Yes.", "two", "Yes."]);
    expect(await host.app.db.selectFrom("agent_turns").selectAll().execute()).toEqual([]);
  },
);

/** Creates a delivery that waits for its turn in a session without an active run. */
async function waitingRun(thread: string): Promise<string> {
  const { json: hook } = await owner.post("/v1/agents/chatting/webhooks", { name: "x", session: thread });
  const headers = { authorization: `Bearer ${hook.secret}` };
  const ids: string[] = [];
  for (const body of ["one", "two"]) {
    const url = `${host.baseUrl}/v1/hooks/agents/${hook.id}`;
    const response = await fetch(url, { method: "POST", headers, body });
    ids.push(((await response.json()) as Json).run_id);
  }
  await owner.post(`/v1/agents/runs/${ids[0]}/cancel`);
  return ids[1]!;
}

test("starts a run although ten workspaces at their limit have twenty waiting runs each", async () => {
  const { id: agent } = (await owner.get("/v1/agents/chatting")).json;
  for (let place = 0; place < 10; place += 1) {
    const { workspaceId } = await host.person();
    await sql`
      with ids as (select ${`b${place}_`} || n as id from generate_series(1, 20) as n), sessions as (
        insert into agent_sessions (id, agent_id, workspace_id, version, created_at, last_used_at)
        select 'ses_' || id, ${agent}, ${workspaceId}, 1, now(), now() from ids), runs as (
        insert into agent_runs (id, workspace_id, agent_id, session_id, session_created, version, trigger_type,
          status, created_at, waits_turn)
        select 'run_' || id, ${workspaceId}, ${agent}, 'ses_' || id, false, 1, 'webhook', 'queued', now(), true
        from ids)
      insert into agent_turns (run_id, session_id, workspace_id, message, in_flight_max, expires_at)
      select 'run_' || id, 'ses_' || id, ${workspaceId}, '{"role":"user","content":[]}', 0,
        now() + interval '1 day' from ids`.execute(host.app.db);
  }
  const id = await waitingRun("fair");
  expect((await startTurns(host.app, [])).started).toEqual([id]);
  await sql`delete from agent_sessions where id like 'ses_b%'`.execute(host.app.db);
});

test("excludes the time of a suspension from the deadline of a waiting run", async () => {
  const id = await waitingRun("held");
  const late = new Date(host.app.clock.now().getTime() - 1);
  await host.app.db.updateTable("agent_turns").set({ expires_at: late }).where("run_id", "=", id).execute();
  const { workspaceId } = owner;
  expect(await startTurns(host.app, [workspaceId])).toMatchObject({ started: [], ended: [] });
  await host.app.db.transaction().execute((tx) => moveTurnDeadlines(tx, { workspaceId, ms: 3_600_000 }));
  expect(await startTurns(host.app, [])).toMatchObject({ started: [id], ended: [] });
});
