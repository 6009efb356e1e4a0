import { sql } from "kysely";
import { expect, test } from "vitest";
import { listNotifications } from "#accounts/notifications/notifications.ts";
import { findActor } from "#accounts/find-actor.ts";
import { testClock } from "../../../test/harness.ts";
import { agentHost, type Json, modelConfig, type Person } from "../testing/agent-app.ts";
import { startModelServer } from "../testing/model-server.ts";
import { Scheduler } from "./scheduler.ts";

const clock = testClock(new Date("2030-01-01T00:00:00Z"));
const model = await startModelServer();
const host = await agentHost({ clock });
const scheduler = new Scheduler(host.app, host.runs);
const minuteMs = 60_000;
let made = 0;

/** Creates an account with an agent. */
async function owner(plan: "starter" | "team" = "team"): Promise<Person & { agent: string }> {
  const person = await host.person({ plan });
  const name = `agent-${(made += 1)}`;
  const { status } = await person.post("/v1/agents", { name, config: await modelConfig(person, model.url) });
  expect(status).toBe(201);
  return { ...person, agent: `/v1/agents/${name}` };
}

async function schedule(of: Person & { agent: string }, body: object): Promise<Json> {
  const { status, json } = await of.post(`${of.agent}/schedules`, { message: "Look.", ...body });
  expect(status, JSON.stringify(json)).toBe(201);
  return json;
}

async function only(of: Person & { agent: string }): Promise<Json> {
  const { json } = await of.get(`${of.agent}/schedules`);
  expect(json.items).toHaveLength(1);
  return json.items[0];
}

const runsOf = async (of: Person): Promise<Json[]> => (await of.get("/v1/agents/runs?limit=100")).json.items;

/** Advances the clock, starts the due runs, and counts their outcomes after they end. */
async function pass(of: Person, milliseconds: number): Promise<void> {
  clock.advance(milliseconds);
  await scheduler.sweep();
  for (const { run_id } of await runsOf(of)) await host.runs.waitForOutcome(run_id, 20_000);
  await scheduler.sweep();
}

const ticksOf = (id: string) =>
  host.app.db
    .selectFrom("agent_schedule_ticks")
    .select(["status", "reason", "tick"])
    .where("schedule_id", "=", id)
    .orderBy("tick")
    .execute();

test("creates, updates, disables and deletes a schedule, and returns its next times", async () => {
  const of = await owner();
  const json = await schedule(of, { schedule: "weekdays@09:00", timezone: "Europe/Berlin", name: "morning" });
  expect(json).toEqual({
    id: expect.stringMatching(/^sch_[a-z0-9]{20}$/),
    schedule: "weekdays@09:00",
    message: "Look.",
    timezone: "Europe/Berlin",
    name: "morning",
    end_user_id: null,
    session: null,
    qualifier: "prod",
    enabled: true,
    next_run_at: "2030-01-01T08:00:00.000Z",
    upcoming_runs_at: [1, 2, 3, 4, 7].map((day) => `2030-01-0${day}T08:00:00.000Z`),
    last_run_at: null,
    last_run_id: null,
    last_status: null,
    last_error: null,
    consecutive_failures: 0,
    disabled_reason: null,
    created_at: clock.now().toISOString(),
  });
  const path = `${of.agent}/schedules/${json.id}`;
  // The test sends a changed GET response back as PATCH.
  const off = await of.call("PATCH", path, { ...(await only(of)), enabled: false });
  expect(off).toMatchObject({
    status: 200,
    json: { enabled: false, next_run_at: null, upcoming_runs_at: [], disabled_reason: null },
  });
  const changed = await of.call("PATCH", path, { enabled: true, schedule: "0 12 * * *", timezone: "UTC" });
  expect(changed.json).toMatchObject({ enabled: true, next_run_at: "2030-01-01T12:00:00.000Z" });
  expect((await of.call("PATCH", path, { message: "Look well." })).json).toMatchObject({
    message: "Look well.",
    next_run_at: "2030-01-01T12:00:00.000Z",
  });
  for (const nothing of [{}, { enabled: true }])
    expect(await of.call("PATCH", path, nothing)).toMatchObject({
      status: 200,
      json: { enabled: true, message: "Look well.", next_run_at: "2030-01-01T12:00:00.000Z" },
    });
  expect((await of.call("DELETE", path)).status).toBe(204);
  expect((await of.call("DELETE", path)).json.code).toBe("schedule_not_found");
  expect((await of.call("PATCH", path, {})).json.code).toBe("schedule_not_found");
  const deeds = await host.app.db
    .selectFrom("activity")
    .select("action")
    .where("target_id", "=", json.id)
    .orderBy("at")
    .execute();
  expect(deeds.map(({ action }) => action)).toEqual([
    "agent_schedule.created",
    ...Array.from({ length: 5 }, () => "agent_schedule.updated"),
    "agent_schedule.deleted",
  ]);
});

test.each([
  [{ schedule: "61 * * * *" }, "/schedule"],
  [{ schedule: "every 10s" }, "/schedule"],
  [{ schedule: "0 0 30 2 *" }, "/schedule"],
  [{ schedule: "daily", timezone: "Mars/Olympus" }, "/timezone"],
  [{ schedule: "daily", message: "" }, "/message"],
  [{ schedule: "daily", cron: "x" }, "/cron"],
])("refuses %j and names the field", async (body, pointer) => {
  const of = await owner();
  const { status, json } = await of.post(`${of.agent}/schedules`, { message: "Look.", ...body });
  expect([status, json]).toMatchObject([400, { code: "invalid_request", pointer }]);
});

test("limits the schedules of an agent", async () => {
  const of = await owner();
  for (let n = 0; n < 50; n += 1) await schedule(of, { schedule: "daily" });
  const { status, json } = await of.post(`${of.agent}/schedules`, { schedule: "daily", message: "x" });
  expect([status, json]).toMatchObject([409, { code: "schedule_limit_reached", allowed: 50 }]);
});

test("starts and records one run per scheduled time, however many servers run", async () => {
  const of = await owner();
  model.script([{ text: ["Nothing new."] }]);
  const { id } = await schedule(of, { schedule: "every 5m", message: "What is new?" });
  const other = new Scheduler(host.app, host.runs);
  clock.advance(5 * minuteMs);
  await Promise.all([scheduler.sweep(), other.sweep(), scheduler.sweep(), other.sweep()]);
  await other.stop();
  const [run, ...more] = await runsOf(of);
  expect(more).toEqual([]);
  expect(run).toMatchObject({ trigger: { type: "schedule", id }, end_user_id: null });
  await host.runs.waitForOutcome(run!.run_id, 20_000);
  expect(model.asked.at(-1).messages.at(-1).content).toContain("What is new?");
  expect(await only(of)).toMatchObject({
    last_run_at: clock.now().toISOString(),
    last_run_id: run!.run_id,
    last_status: "completed",
    last_error: null,
    next_run_at: new Date(clock.now().getTime() + 5 * minuteMs).toISOString(),
  });
  await pass(of, 5 * minuteMs);
  const [second] = await runsOf(of);
  expect(second!.session_id).not.toBe(run!.session_id);
  expect(await ticksOf(id)).toMatchObject([{ status: "completed" }, { status: "completed" }]);
});

test("runs the last missed time after a downtime of less than ten minutes, and records the others as skipped", async () => {
  const of = await owner();
  model.script([{ text: ["Yes."] }]);
  const { id } = await schedule(of, { schedule: "every 2m" });
  await pass(of, 7 * minuteMs);
  expect(await runsOf(of)).toHaveLength(1);
  expect(await ticksOf(id)).toMatchObject([
    { status: "skipped", reason: "missed" },
    { status: "skipped", reason: "missed" },
    { status: "completed" },
  ]);
  expect(await only(of)).toMatchObject({ last_status: "completed", consecutive_failures: 0 });
});

test("skips a scheduled time that was missed by ten minutes, and records it as skipped", async () => {
  const of = await owner();
  const { id, next_run_at } = await schedule(of, { schedule: "every 2h" });
  await pass(of, 130 * minuteMs);
  expect(await runsOf(of)).toEqual([]);
  expect(await ticksOf(id)).toEqual([{ status: "skipped", reason: "missed", tick: new Date(next_run_at) }]);
  expect(await only(of)).toMatchObject({
    last_status: "skipped",
    last_error: "missed",
    last_run_id: null,
    consecutive_failures: 0,
    next_run_at: new Date(Date.parse(next_run_at) + 120 * minuteMs).toISOString(),
  });
});

test("disables a schedule with a notification after ten failures in a row; a success resets the count", async () => {
  const of = await owner();
  const refusal = { status: 400, error: "no such model" };
  model.script([refusal]);
  const { id } = await schedule(of, { schedule: "every 1m", name: "watch" });
  for (let n = 0; n < 9; n += 1) await pass(of, minuteMs);
  expect(await only(of)).toMatchObject({ consecutive_failures: 9, enabled: true, last_error: "model_error" });
  model.script([{ text: ["Yes."] }]);
  await pass(of, minuteMs);
  expect(await only(of)).toMatchObject({ consecutive_failures: 0, last_status: "completed" });
  model.script([refusal]);
  for (let n = 0; n < 10; n += 1) await pass(of, minuteMs);
  expect(await only(of)).toMatchObject({
    enabled: false,
    next_run_at: null,
    consecutive_failures: 10,
    disabled_reason: "consecutive_failures",
    last_status: "failed",
  });
  await pass(of, minuteMs);
  expect(await runsOf(of)).toHaveLength(20);
  const actor = await findActor(host.app, { kind: "token", secret: of.token });
  expect(await listNotifications(host.app, actor!)).toMatchObject([
    { kind: "schedule_disabled", target: { kind: "agent_schedule", id, label: "watch" } },
  ]);
  const again = await of.call("PATCH", `${of.agent}/schedules/${id}`, { enabled: true });
  expect(again.json).toMatchObject({ enabled: true, consecutive_failures: 0, disabled_reason: null });
}, 90_000);

test("counts a failed run as completed after a resume completes the run", async () => {
  const of = await owner();
  model.script([{ status: 400, error: "no" }]);
  const { id } = await schedule(of, { schedule: "every 1m" });
  await pass(of, minuteMs);
  await pass(of, minuteMs);
  expect(await only(of)).toMatchObject({ consecutive_failures: 2, last_status: "failed" });
  const [second, first] = await runsOf(of);
  model.script([{ text: ["Seen."] }]);
  await of.post(`/v1/agents/runs/${second.run_id}/resume`);
  expect(await only(of)).toMatchObject({ consecutive_failures: 1 });
  await host.runs.waitForOutcome(second.run_id, 20_000);
  await scheduler.sweep();
  expect(await only(of)).toMatchObject({
    consecutive_failures: 0,
    last_status: "completed",
    last_error: null,
  });
  expect((await ticksOf(id)).map(({ status }) => status)).toEqual(["failed", "completed"]);
  // A resumed run that fails again counts as one failure. If a resumed run completes, later failures stay counted.
  model.script([{ status: 400, error: "no" }]);
  await pass(of, minuteMs);
  await of.post(`/v1/agents/runs/${first.run_id}/resume`);
  await host.runs.waitForOutcome(first.run_id, 20_000);
  await scheduler.sweep();
  expect(await only(of)).toMatchObject({ consecutive_failures: 1 });
  model.script([{ text: ["Seen."] }]);
  await of.post(`/v1/agents/runs/${first.run_id}/resume`);
  await host.runs.waitForOutcome(first.run_id, 20_000);
  await scheduler.sweep();
  expect((await ticksOf(id)).map(({ status }) => status)).toEqual(["completed", "completed", "failed"]);
  expect(await only(of)).toMatchObject({ consecutive_failures: 1 });
});

test("counts a scheduled time whose run cannot start as a failure, with the reason", async () => {
  const of = await owner("starter");
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  for (const input of ["one", "two"]) await of.post(`${of.agent}/invoke`, { input, wait_s: 0 });
  const { id } = await schedule(of, { schedule: "every 1m" });
  clock.advance(minuteMs);
  await scheduler.sweep();
  expect(await ticksOf(id)).toMatchObject([{ status: "refused", reason: "session_cap_reached" }]);
  expect(await only(of)).toMatchObject({
    last_status: "refused",
    last_error: "session_cap_reached",
    last_run_id: null,
    consecutive_failures: 1,
  });
  never.resolve();
  await of.call("DELETE", `${of.agent}/schedules/${id}`);
});

test("skips the scheduled times of a paused agent, and counts no failures", async () => {
  const of = await owner();
  const { id } = await schedule(of, { schedule: "every 1m" });
  await of.call("PATCH", of.agent, { paused: true });
  await pass(of, minuteMs);
  expect(await ticksOf(id)).toMatchObject([{ status: "skipped", reason: "agent_paused" }]);
  expect(await only(of)).toMatchObject({ last_status: "skipped", consecutive_failures: 0, enabled: true });
});

test("does not count a cancelled run as a failure", async () => {
  const of = await owner();
  const never = Promise.withResolvers<void>();
  model.script([{ until: never.promise }]);
  const { id } = await schedule(of, { schedule: "every 1m" });
  clock.advance(minuteMs);
  await scheduler.sweep();
  const [run] = await runsOf(of);
  await of.post(`/v1/agents/runs/${run!.run_id}/cancel`);
  await scheduler.sweep();
  never.resolve();
  expect(await ticksOf(id)).toMatchObject([{ status: "stopped", reason: "cancelled" }]);
  expect(await only(of)).toMatchObject({ last_status: "failed", consecutive_failures: 0 });
});

test("ends sessions of schedules after an hour, and does not count them towards the plan's limit", async () => {
  const of = await owner("starter");
  model.script([{ text: ["Yes."] }]);
  await schedule(of, { schedule: "every 1m" });
  for (let n = 0; n < 4; n += 1) await pass(of, minuteMs);
  expect((await runsOf(of)).map(({ status }) => status)).toEqual(
    Array.from({ length: 4 }, () => "completed"),
  );
  const live = async () =>
    (await of.get(`${of.agent}/sessions`)).json.items.filter(({ status }: Json) => status !== "ended");
  const [kept, ...rest] = await live();
  expect(rest).toHaveLength(1);
  // A later invoke still finds the session.
  const back = await of.post(`${of.agent}/invoke`, { input: "And?", session_id: kept.id });
  expect(back.json).toMatchObject({ status: "completed", session_created: false });
  const mine = await of.post(`${of.agent}/invoke`, { input: "Hello." });
  expect(mine.json).toMatchObject({ status: "completed", session_created: true });
  await of.call("DELETE", `${of.agent}/schedules/${(await only(of)).id}`);
  clock.advance(61 * minuteMs);
  await scheduler.prune();
  expect((await live()).map(({ id }: Json) => id)).not.toContain(mine.json.session_id);
});

test("ends an idle session even if any number of sessions with waiting runs are idle for longer", async () => {
  const of = await owner();
  model.script([{ text: ["Yes."] }]);
  await schedule(of, { schedule: "every 1m" });
  await pass(of, minuteMs);
  await of.call("DELETE", `${of.agent}/schedules/${(await only(of)).id}`);
  const [left] = (await of.get(`${of.agent}/sessions`)).json.items;
  // Each of these sessions is idle for longer than the remaining session.
  await sql`
    with waiting as (
      insert into agent_sessions (id, agent_id, workspace_id, version, created_at, last_used_at)
      select 'ses_waiting' || n, agent_id, workspace_id, version, created_at, created_at - interval '1 day'
      from agent_sessions, generate_series(1, 100) as n where id = ${left.id}
      returning id)
    insert into agent_runs
      select (jsonb_populate_record(r, jsonb_build_object(
        'id', 'run_' || w.id, 'session_id', w.id, 'status', 'pending_approval',
        'finished_at', null, 'settled_at', null))).*
      from agent_runs r, waiting w where r.session_id = ${left.id}`.execute(host.app.db);
  clock.advance(61 * minuteMs);
  await scheduler.prune();
  expect((await of.get(`${of.agent}/sessions/${left.id}`)).json.status).toBe("ended");
  expect((await of.get(`${of.agent}/sessions/ses_waiting1`)).json.status).not.toBe("ended");
  await sql`delete from agent_sessions where id like 'ses_waiting%'`.execute(host.app.db);
});

test("ends sessions beyond the plan of a downgraded account when a new session starts", async () => {
  const of = await owner("starter");
  model.script([{ text: ["Yes."] }]);
  await schedule(of, { schedule: "every 1m" });
  await pass(of, minuteMs);
  const [left] = (await of.get(`${of.agent}/sessions`)).json.items;
  await of.call("DELETE", `${of.agent}/schedules/${(await only(of)).id}`);
  await sql`
    insert into agent_sessions (id, agent_id, workspace_id, version, created_at, last_used_at)
    select 'ses_larger' || n, agent_id, workspace_id, version, created_at, last_used_at
    from agent_sessions, generate_series(1, 4) as n where id = ${left.id}`.execute(host.app.db);
  const { json } = await of.post(`${of.agent}/invoke`, { input: "Hello." });
  expect(json).toMatchObject({ status: "completed" });
  const { items } = (await of.get(`${of.agent}/sessions`)).json;
  expect(items.filter(({ status }: Json) => status !== "ended")).toHaveLength(2);
});

test("skips a scheduled time that already had a run before the clock was set back", async () => {
  const of = await owner();
  model.script([{ text: ["Yes."] }]);
  const { id, next_run_at } = await schedule(of, { schedule: "every 1m" });
  await pass(of, minuteMs);
  const [run, ...none] = await runsOf(of);
  expect(none).toEqual([]);
  await host.app.db
    .updateTable("agent_schedules")
    .set({ next_run_at: new Date(next_run_at) })
    .where("id", "=", id)
    .execute();
  await pass(of, 0);
  expect((await runsOf(of)).map(({ run_id }) => run_id)).toEqual([run!.run_id]);
  expect(await only(of)).toMatchObject({
    next_run_at: new Date(Date.parse(next_run_at) + minuteMs).toISOString(),
    last_status: "completed",
    last_run_id: run!.run_id,
  });
  await pass(of, minuteMs);
  expect(await runsOf(of)).toHaveLength(2);
  expect(await ticksOf(id)).toMatchObject([{ status: "completed" }, { status: "completed" }]);
});
