import { sql } from "kysely";
import { expect, test } from "vitest";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { readFrames } from "../testing/events.ts";
import { startModelServer } from "../testing/model-server.ts";
import { endExpired } from "./expire.ts";

const model = await startModelServer();
const host = await agentHost();
const minuteMs = 60_000;

async function owner(config: object = {}, plan: "starter" | "team" = "starter"): Promise<Person> {
  const person = await host.person({ plan });
  const own = { ...(await modelConfig(person, model.url)), ...config };
  const { status, json } = await person.post("/v1/agents", { name: "one", config: own });
  expect(status, JSON.stringify(json)).toBe(201);
  return person;
}

const invoke = async (of: Person, body: object = {}): Promise<Json> =>
  (await of.post("/v1/agents/one/invoke", { input: "Hi", ...body })).json;
const session = async (of: Person, id: string): Promise<Json> =>
  (await of.get(`/v1/agents/one/sessions/${id}`)).json;

test("ends the session that is idle longest when a new session exceeds the plan's limit", async () => {
  const of = await owner();
  model.script([{ text: ["Yes."] }]);
  const sessions: string[] = [];
  for (let n = 0; n < 5; n += 1) sessions.push((await invoke(of)).session_id);
  const statuses = await Promise.all(sessions.map(async (id) => (await session(of, id)).status));
  expect(statuses).toEqual(["ended", "ended", "ended", "idle", "idle"]);
});

test("rejects a new session while all sessions that the plan allows have an active run", async () => {
  const of = await owner();
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  for (let n = 0; n < 2; n += 1) await invoke(of, { wait_s: 0 });
  expect(await invoke(of)).toMatchObject({ code: "session_cap_reached" });
  never.resolve();
});

test("ends a session after the idle minutes of its version, counted from the session's last run", async () => {
  const of = await owner({ session: { idle_minutes: 5 } });
  model.script([{ text: ["Yes."] }]);
  const { session_id: id } = await invoke(of);
  expect(await session(of, id)).toMatchObject({ ends_when_idle_minutes: 5, ephemeral: false });
  const after = (minutes: number) => new Date(Date.now() + minutes * minuteMs);
  await endExpired(host.app, after(4));
  expect((await session(of, id)).status).toBe("idle");
  // The session was last used an hour ago, but its run has just ended, as after a long run.
  await sql`update agent_sessions set last_used_at = now() - interval '1 hour' where id = ${id}`.execute(
    host.app.db,
  );
  await endExpired(host.app, new Date());
  expect((await session(of, id)).status).toBe("idle");
  await endExpired(host.app, after(6));
  expect((await session(of, id)).status).toBe("ended");
});

test("ends an ephemeral session with its run, and keeps the run readable", async () => {
  const of = await owner();
  model.script([{ text: ["Once."] }]);
  const run = await invoke(of, { ephemeral: true });
  expect(run).toMatchObject({ status: "completed", output: "Once." });
  await expect
    .poll(async () => (await session(of, run.session_id)).status, { timeout: 20_000 })
    .toBe("ended");
  expect(await session(of, run.session_id)).toMatchObject({ ephemeral: true });
  expect((await of.get(`/v1/agents/runs/${run.run_id}`)).json.output).toBe("Once.");
  const refused = await invoke(of, { ephemeral: true, session_id: run.session_id });
  expect(refused).toMatchObject({ code: "invalid_request" });
  expect(refused.detail).toContain("ephemeral");
});

test("lists sessions and runs in pages by a cursor, and filters both lists", async () => {
  const of = await owner({}, "team");
  model.script([{ text: ["Yes."] }]);
  const runs: Json[] = [];
  for (const end_user_id of ["ada", "bob", "ada", "bob", "ada"]) runs.push(await invoke(of, { end_user_id }));
  await of.call("DELETE", `/v1/agents/one/sessions/${runs[0].session_id}`);
  const all = async (path: string): Promise<Json[]> => {
    const items: Json[] = [];
    for (let cursor = ""; ;) {
      const { status, json } = await of.get(`${path}&limit=2${cursor && `&cursor=${cursor}`}`);
      expect(status, JSON.stringify(json)).toBe(200);
      expect(json.items.length).toBeLessThanOrEqual(2);
      items.push(...json.items);
      if (json.next_cursor === null) return items;
      cursor = json.next_cursor;
    }
  };
  const newestFirst = runs.toReversed();
  expect((await all("/v1/agents/runs?agent=one")).map(({ run_id }) => run_id)).toEqual(
    newestFirst.map(({ run_id }) => run_id),
  );
  const ofAda = newestFirst.filter((_, n) => n % 2 === 0);
  expect((await all("/v1/agents/runs?end_user_id=ada")).map(({ run_id }) => run_id)).toEqual(
    ofAda.map(({ run_id }) => run_id),
  );
  expect(await all("/v1/agents/runs?trigger=schedule")).toEqual([]);
  const { created_at } = (await of.get(`/v1/agents/runs/${runs[2].run_id}`)).json;
  expect(await all(`/v1/agents/runs?created_before=${created_at}`)).toHaveLength(2);
  expect(await all(`/v1/agents/runs?created_after=${created_at}`)).toHaveLength(3);
  const ids = async (query: string) => (await all(`/v1/agents/one/sessions?${query}`)).map(({ id }) => id);
  expect(await ids("status=live")).toEqual(newestFirst.slice(0, 4).map(({ session_id }) => session_id));
  expect(await ids("status=ended")).toEqual([runs[0].session_id]);
  expect(await ids("status=busy")).toEqual([]);
  expect(await ids("status=idle&end_user_id=bob")).toEqual([runs[3].session_id, runs[1].session_id]);
  const { next_cursor } = (await of.get("/v1/agents/one/sessions?limit=1")).json;
  const other = await of.get(`/v1/agents/one/sessions?limit=1&status=live&cursor=${next_cursor}`);
  expect(other).toMatchObject({ status: 400, json: { code: "invalid_request" } });
});

test("marks output that a token limit cut off, in the run and in the run's events", async () => {
  const of = await owner();
  model.script([{ text: ["half an ans"], finish: "length" }]);
  const run = await invoke(of);
  const cut = { finish_reason: "length", output_truncated: true };
  expect(run).toMatchObject({ status: "completed", output: "half an ans", ...cut });
  expect((await of.get(`/v1/agents/runs/${run.run_id}`)).json).toMatchObject(cut);
  const { frames } = await readFrames(`${host.baseUrl}/v1/agents/runs/${run.run_id}/stream`, {
    token: of.token,
  });
  const events = frames.map(({ data }) => data as Json);
  expect(events.find(({ type }) => type === "step.completed")).toMatchObject({ finish_reason: "length" });
  expect(events.find(({ type }) => type === "run.completed")).toMatchObject(cut);
});
