/** Loss of a session's machine by deletion, crash or the session's end, and limits of the plan. */
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
  toolResults,
  wait,
} from "../testing/machine-host.ts";
import { terminateMachine } from "./terminate-machines.ts";
import { parkIdle } from "./park-machines.ts";

const exec = (command: string) => call("exec", { command });
const kill = (id: string) => endSandbox(host.app, { id, reason: "requested" });

test("fails one run with vm_lost after its machine was deleted, and creates a new machine for the next run", async () => {
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
  expect(toolResults().at(-1)).toBe("exit code: 0");
  const machine = await machineOf(name, session_id);
  expect(machine.status).toBe("running");
  expect(machine.sandbox_id).not.toBe(sandbox_id);
});

test("fails a run with vm_lost if its machine terminates during a call", async () => {
  const name = await agent();
  script([exec("true")], [exec("sleep 60")]);
  const { session_id, run_id } = await invoke(name, { wait_s: 0 });
  const running = async () => (await owner.get(`/v1/agents/runs/${run_id}`)).json;
  await expect.poll(async () => (await running()).tools_called.length, { timeout: 20_000 }).toBe(2);
  await kill((await machineOf(name, session_id)).sandbox_id);
  await expect.poll(async () => (await running()).error_code, { timeout: 20_000 }).toBe("vm_lost");
});

/** Creates a session whose machine contains a file and is parked. */
async function createParkedSession(): Promise<{ name: string; session_id: string }> {
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

test("terminates a machine with a damaged snapshot, and fails the run with the cause", async () => {
  const { name, session_id } = await createParkedSession();
  failing("restore", new RuntimeError("not_restorable", "a byte has changed"));
  script([exec("true")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "failed", error_code: "vm_lost" });
  box.driver.heal();
  expect((await sandboxes(session_id)).map(({ status }) => status)).toEqual(["terminated"]);
});

test("keeps a parked machine that the host cannot start now, notifies the model, and retries at a later call", async () => {
  const { name, session_id } = await createParkedSession();
  failing("restore", new RuntimeError("failed", "no such luck"));
  script([exec("cat file")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "completed" });
  expect(toolResults().at(-1)).toMatch(/^No machine is available: .*The snapshot is kept/);
  expect((await machineOf(name, session_id)).status).toBe("parked");
  box.driver.heal();
  script([exec("cat file")]);
  expect(await invoke(name, { session_id })).toMatchObject({ status: "completed" });
  expect(toolResults().at(-1)).toBe("exit code: 0\nstdout:\nkept\n");
});

test("notifies the model if a machine cannot be created, and retries at the next call", async () => {
  const name = await agent();
  failing("create", new RuntimeError("failed", "no"));
  model.script((body: Json) => {
    const answers = body.messages.filter(({ role }: Json) => role === "tool").length;
    // The host recovers before the second call.
    if (answers === 1) box.driver.heal();
    return answers === 2
      ? { text: ["Done."] }
      : { calls: [{ name: "exec", arguments: '{"command":"true"}' }] };
  });
  expect(await invoke(name)).toMatchObject({ status: "completed" });
  expect(toolResults()).toEqual([expect.stringMatching(/^No machine is available: /), "exit code: 0"]);
});

test("deletes a machine when its session ends, whether it runs or is parked", async () => {
  const name = await agent({ park_after_seconds: 0 });
  for (const isParked of [false, true]) {
    script([exec("true")]);
    const { session_id } = await invoke(name);
    await wait(session_id, 1);
    if (isParked) await parkIdle(host.app);
    expect((await owner.call("DELETE", `/v1/agents/${name}/sessions/${session_id}`)).status).toBe(204);
    expect(await machineOf(name, session_id)).toEqual({ sandbox_id: null, status: "none" });
    await terminateMachine(host.app, session_id);
    expect((await sandboxes(session_id)).map(({ status }) => status)).toEqual(["terminated"]);
  }
  expect((await sql`select from agent_machines where state = 'ending'`.execute(host.app.db)).rows).toEqual(
    [],
  );
});

test("creates no machine for a session that ends during the machine's creation", async () => {
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
  "parks an idle machine in the next server after a server dies at %s",
  async (point) => {
    const name = await agent({ park_after_seconds: 0 });
    script([exec("echo kept > file")]);
    const { session_id } = await invoke(name);
    await wait(session_id, 1);
    // The stopped server never continues after this point.
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
    expect(toolResults().at(-1)).toBe("exit code: 0\nstdout:\nkept\n");
  },
);

test("rejects an invalid machine config when a version is published", async () => {
  const config = await modelConfig(owner, model.url);
  const createAgent = async (vm: object) =>
    (await owner.post("/v1/agents", { name: "judged", config: { ...config, vm } })).json;
  expect(await createAgent({ template: "nothing" })).toMatchObject({
    code: "invalid_request",
    pointer: "/config/vm/template",
    detail: expect.stringContaining("known are"),
  });
  expect(await createAgent({ volume: "vol_none" })).toMatchObject({ pointer: "/config/vm/volume" });
  expect(await createAgent({ volume: "Not a name" })).toMatchObject({ pointer: "/config/vm/volume" });
  expect(await createAgent({ tools: ["run_code"] })).toMatchObject({
    pointer: "/config/vm/tools",
    detail: expect.stringContaining("code-interpreter"),
  });
});

test("refuses a run whose machine exceeds the limits of the plan", async () => {
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
