/** A session's machine that goes: by somebody's hand, by a crash, with its session; and what a plan does not allow. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { RuntimeError } from "@kontor/runtime/driver.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { type Json, modelConfig } from "../testing/agent-app.ts";
import {
  agent,
  box,
  call,
  host,
  invoke,
  machineOf,
  model,
  owner,
  sandboxes,
  script,
  told,
  wait,
} from "../testing/machine-host.ts";
import { destroyMachine } from "./terminate-machines.ts";
import { parkIdle } from "./park-machines.ts";

const exec = (command: string) => call("exec", { command });
const kill = (id: string) => endSandbox(host.app, { id, reason: "requested" });

test("a machine that was deleted fails one run with vm_lost, and the next gets a new one", async () => {
  const name = await agent();
  script([exec("echo kept > file")]);
  const { session_id } = await invoke(name);
  const { sandbox_id } = await machineOf(name, session_id);
  await kill(sandbox_id);
  expect(await machineOf(name, session_id)).toEqual({ sandbox_id, status: "lost" });
  script([exec("cat file"), exec("cat file")]);
  const failed = await invoke(name, { session_id });
  expect(failed).toMatchObject({ status: "failed", error_code: "vm_lost" });
  expect((await owner.get(`/v1/agents/runs/${failed.run_id}`)).json.error_message).toBe(
    "The session's machine is lost: it was deleted. The conversation stays; the next run gets a new machine.",
  );
  expect(await sandboxes(session_id)).toHaveLength(1);
  script([exec("ls")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "completed" });
  expect(told().at(-1)).toBe("exit code: 0");
  const machine = await machineOf(name, session_id);
  expect(machine.status).toBe("running");
  expect(machine.sandbox_id).not.toBe(sandbox_id);
});

test("a machine that ends under a call fails its run with vm_lost", async () => {
  const name = await agent();
  script([exec("true")], [exec("sleep 60")]);
  const { session_id, run_id } = await invoke(name, { wait_s: 0 });
  const running = async () => (await owner.get(`/v1/agents/runs/${run_id}`)).json;
  await expect.poll(async () => (await running()).tools_called.length, { timeout: 20_000 }).toBe(2);
  await kill((await machineOf(name, session_id)).sandbox_id);
  await expect.poll(async () => (await running()).error_code, { timeout: 20_000 }).toBe("vm_lost");
});

/** A session whose machine holds a file and is on disk. */
async function parked(): Promise<{ name: string; session_id: string }> {
  const name = await agent({ park_after_seconds: 0 });
  script([exec("echo kept > file")]);
  const { session_id } = await invoke(name);
  await wait(session_id, 1);
  await parkIdle(host.app);
  expect((await machineOf(name, session_id)).status).toBe("parked");
  return { name, session_id };
}

const failing = (verb: "create" | "restore", error: RuntimeError) => {
  for (let tries = 0; tries < 20; tries += 1) box.driver.fail(verb, error);
};

test("a machine whose snapshot is damaged is given up, and its run says so", async () => {
  const { name, session_id } = await parked();
  failing("restore", new RuntimeError("not_restorable", "a byte is not what it was"));
  script([exec("true")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "failed", error_code: "vm_lost" });
  box.driver.heal();
  expect((await sandboxes(session_id)).map(({ status }) => status)).toEqual(["terminated"]);
});

test("one that a host can't start at the moment keeps what is in it: the model is told, and a later call tries again", async () => {
  const { name, session_id } = await parked();
  failing("restore", new RuntimeError("failed", "no such luck"));
  script([exec("cat file")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "completed" });
  expect(told().at(-1)).toMatch(/^There is no machine for this: .*snapshot, which is kept/);
  expect((await machineOf(name, session_id)).status).toBe("parked");
  box.driver.heal();
  script([exec("cat file")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "completed" });
  expect(told().at(-1)).toBe("exit code: 0\nstdout:\nkept\n");
});

test("what keeps a machine from being made is told to the model, and the next call tries again", async () => {
  const name = await agent();
  failing("create", new RuntimeError("failed", "no"));
  model.script((body: Json) => {
    const answers = body.messages.filter(({ role }: Json) => role === "tool").length;
    // By its second call the host is well again.
    if (answers === 1) box.driver.heal();
    return answers === 2
      ? { text: ["Done."] }
      : { calls: [{ name: "exec", arguments: '{"command":"true"}' }] };
  });
  expect(await invoke(name)).toMatchObject({ status: "completed" });
  expect(told()).toEqual([expect.stringMatching(/^There is no machine for this: /), "exit code: 0"]);
});

test("a session that ends takes its machine along, in use or parked", async () => {
  const name = await agent({ park_after_seconds: 0 });
  for (const isParked of [false, true]) {
    script([exec("true")]);
    const { session_id } = await invoke(name);
    await wait(session_id, 1);
    if (isParked) await parkIdle(host.app);
    expect((await owner.call("DELETE", `/v1/agents/${name}/sessions/${session_id}`)).status).toBe(204);
    expect(await machineOf(name, session_id)).toEqual({ sandbox_id: null, status: "none" });
    await destroyMachine(host.app, session_id);
    expect((await sandboxes(session_id)).map(({ status }) => status)).toEqual(["terminated"]);
  }
  expect((await sql`select from agent_machines where state = 'ending'`.execute(host.app.db)).rows).toEqual(
    [],
  );
});

test("a session that ends while its machine is made gets none", async () => {
  const name = await agent();
  script([exec("true")]);
  let session = "";
  onKillPoint(async (point) => {
    if (point !== "agent.call.began") return;
    onKillPoint(undefined);
    const { rows } = await sql<{ session_id: string }>`select session_id from agent_runs
      where status = 'running'`.execute(host.app.db);
    session = rows[0]!.session_id;
    await owner.call("DELETE", `/v1/agents/${name}/sessions/${session}`);
  });
  expect(await invoke(name)).toMatchObject({ status: "failed", error_code: "session_ended" });
  expect(await sandboxes(session)).toEqual([]);
});

test.each(["agent.vm.parking", "pause.taken", "pause.committed", "agent.vm.paused"])(
  "a server that dies at %s while it parks is followed by one that ends it",
  async (point) => {
    const name = await agent({ park_after_seconds: 0 });
    script([exec("echo kept > file")]);
    const { session_id } = await invoke(name);
    await wait(session_id, 1);
    // Whatever is not done by then is never done by this one.
    const stuck = Promise.withResolvers<void>();
    const there = Promise.withResolvers<void>();
    onKillPoint(async (reached) => {
      if (reached !== point) return;
      there.resolve();
      await stuck.promise;
    });
    void parkIdle(host.app).catch(() => {});
    await there.promise;
    onKillPoint(undefined);
    await box.restart();
    await parkIdle(host.app);
    expect((await machineOf(name, session_id)).status).toBe("parked");
    script([exec("cat file")]);
    await invoke(name, { session_id });
    expect(told().at(-1)).toBe("exit code: 0\nstdout:\nkept\n");
  },
);

test("what a machine is to be made of is judged when the version is published", async () => {
  const config = await modelConfig(owner, model.url);
  const judged = async (vm: object) =>
    (await owner.post("/v1/agents", { name: "judged", config: { ...config, vm } })).json;
  expect(await judged({ template: "nothing" })).toMatchObject({
    code: "invalid_request",
    pointer: "/config/vm/template",
    detail: expect.stringContaining("known are"),
  });
  expect(await judged({ volume: "vol_none" })).toMatchObject({ pointer: "/config/vm/volume" });
  expect(await judged({ volume: "Not a name" })).toMatchObject({ pointer: "/config/vm/volume" });
  expect(await judged({ tools: ["run_code"] })).toMatchObject({
    pointer: "/config/vm/tools",
    detail: expect.stringContaining("code-interpreter"),
  });
});

test("what the plan does not allow is refused when the version is run", async () => {
  const poor = await host.person();
  await sql`update workspaces set sandbox_tier = 'free' where id = ${poor.workspaceId}`.execute(host.app.db);
  const config = await modelConfig(poor, model.url);
  for (const [vm, limit] of [
    [{ network: "open" }, "vm_network"],
    [{ size: "large" }, "size"],
    [{ allow_domains: ["example.com"] }, "allow_domains"],
  ] as const) {
    const { json } = await poor.post("/v1/agents", { name: `poor-${limit}`, config: { ...config, vm } });
    expect(await poor.post(`/v1/agents/${json.name}/invoke`, { input: "Hi" })).toMatchObject({
      status: 403,
      json: { code: "plan_limit", limit },
    });
  }
});
