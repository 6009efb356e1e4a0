/** A session's machine from its first use to parking and resumption. */
import { sql } from "kysely";
import { expect, test } from "vitest";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { onKillPoint } from "#lib/kill-points.ts";
import type { Json } from "../testing/agent-app.ts";
import {
  agent,
  box,
  call,
  config,
  drawn,
  host,
  invoke,
  machineOf,
  model,
  owner,
  sandboxes,
  sandboxOf,
  script,
  toolResults,
  wait,
} from "../testing/machine-host.ts";
import { keepMachinesAlive, parkIdle } from "./park-machines.ts";

test("creates a session's machine at the first tool call, and labels the machine with the session", async () => {
  const name = await agent({ size: "medium", network: "off", park_after_seconds: 60 });
  script([]);
  model.script([{ text: ["No need."] }]);
  const first = await invoke(name);
  expect(await machineOf(name, first.session_id)).toEqual({ sandbox_id: null, status: "none" });
  script([call("exec", { command: "echo out; echo err >&2; exit 3" })]);
  const { session_id, run_id, status } = await invoke(name, { session_id: first.session_id });
  expect([status, toolResults()]).toEqual(["completed", ["exit code: 3\nstdout:\nout\n\nstderr:\nerr\n"]]);
  const machine = await machineOf(name, session_id);
  expect(machine).toEqual({ sandbox_id: expect.stringMatching(/^sbx_/), status: "running" });
  const { json: seen } = await owner.get(`/v1/agents/${name}`);
  expect(await sandboxOf(machine.sandbox_id)).toMatchObject({
    size: "medium",
    network: "off",
    on_timeout: "pause",
    timeout_seconds: 960,
    metadata: { agent: seen.id, agent_session: session_id },
  });
  expect((await owner.get(`/v1/agents/runs/${run_id}`)).json.tools_called).toMatchObject([
    { tool: "exec", toolset_id: null, status: "completed" },
  ]);
  const { rows } = await sql`select actor_kind, actor_id from activity where target_id = ${machine.sandbox_id}
    and action = 'sandbox.created'`.execute(host.app.db);
  expect(rows).toEqual([{ actor_kind: "worker", actor_id: seen.worker_id }]);
});

test("shares one machine and its files between concurrent calls of a session", async () => {
  const name = await agent();
  script(
    [
      call("write_file", { path: "a.txt", content: "Grüße" }),
      call("write_file", { path: "/tmp/b", content: "b" }),
      call("exec", { command: "pwd >/dev/null" }),
    ],
    [
      call("read_file", { path: "a.txt" }),
      call("exec", { command: "cat a.txt" }),
      call("read_file", { path: "none" }),
      call("read_file", { path: "/workspace" }),
      call("write_file", { path: "/etc/passwd", content: "x" }),
    ],
  );
  const { session_id, status } = await invoke(name);
  expect(status).toBe("completed");
  expect(toolResults()).toEqual([
    "Wrote 7 bytes to /workspace/a.txt.",
    "Wrote 1 bytes to /tmp/b.",
    "exit code: 0",
    "Grüße",
    "exit code: 0\nstdout:\nGrüße",
    expect.stringContaining("none"),
    expect.stringContaining("directory"),
    expect.stringContaining("/etc/passwd"),
  ]);
  expect(await sandboxes(session_id)).toHaveLength(1);
});

test("logs calls in the machine to the audit log, without commands and file contents", async () => {
  const name = await agent({ template: "code-interpreter" });
  const canary = "canary-of-a-call";
  script(
    [call("write_file", { path: "a.txt", content: canary })],
    [call("read_file", { path: "a.txt" }), call("read_file", { path: "none" })],
    [call("exec", { command: `echo ${canary}` })],
    [call("exec", { command: "" })],
  );
  const { run_id, session_id } = await invoke(name);
  await accessLogOf(host.app).flush();
  const { sandbox_id } = await machineOf(name, session_id);
  const { json: seen } = await owner.get(`/v1/agents/${name}`);
  const rows = await host.app.db
    .selectFrom("activity")
    .selectAll()
    .where("target_id", "=", sandbox_id)
    .where("is_access", "=", true)
    .execute();
  expect(
    rows
      .map(({ action, detail }) => [action, detail["path"]])
      .toSorted((a, b) => (String(a) < String(b) ? -1 : 1)),
  ).toEqual([
    ["command.executed", undefined],
    ["file.read", "a.txt"],
    ["file.read", "none"],
    ["file.written", "a.txt"],
  ]);
  for (const row of rows)
    expect(row).toMatchObject({
      actor_kind: "worker",
      actor_id: seen.worker_id,
      workspace_id: owner.workspaceId,
      detail: { run_id, call_id: expect.stringMatching(/^call_/) },
    });
  expect(JSON.stringify(rows)).not.toContain(canary);
});

test("limits the size of results, and adds the size of the omitted part", async () => {
  const name = await agent();
  script(
    [
      call("exec", { command: "head -c 200000 /dev/zero | tr '\\0' a; echo end" }),
      call("exec", {
        command: "(printf a; yes ä | head -n 40000 | tr -d '\\n') > long; printf '\\0' > binary; true",
      }),
    ],
    [call("read_file", { path: "long" }), call("read_file", { path: "binary" })],
  );
  await invoke(name);
  const [long, , cut, binary] = toolResults();
  expect(Buffer.byteLength(long!)).toBeLessThan(64 * 1024);
  expect(long).toMatch(/^exit code: 0\nstdout:\na+\n\[\d+ bytes left out\]\na+end\n$/);
  expect(cut).toMatch(/\n\[cut off after 65536 of \d+ bytes\]$/);
  expect(binary).toContain("The file is not text: 1 bytes.");
});

test("returns a text file unchanged, with its line ends and byte order mark", async () => {
  const name = await agent();
  const text = "\uFEFFa\r\nb\rc\n\r\n";
  script(
    [call("write_file", { path: "a.txt", content: text })],
    [call("read_file", { path: "a.txt" }), call("exec", { command: "cat a.txt; printf 'd\\r\\n' >&2" })],
  );
  await invoke(name);
  expect(toolResults().slice(1)).toEqual([text, `exit code: 0\nstdout:\n${text}\nstderr:\nd\r\n`]);
});

test("kills a command at its own time limit, at the call's time limit, and when its run ends", async () => {
  const name = await agent({}, { limits: { tool_timeout_seconds: 2 } });
  script([
    call("exec", { command: "echo begun; sleep 60", timeout_seconds: 1 }),
    call("exec", { command: "sleep 60" }),
  ]);
  await invoke(name);
  expect(toolResults()).toEqual([
    "The command was killed after 1 s.\nstdout:\nbegun\n",
    expect.stringMatching(/^The command was killed after [12] s\.$|^The call took longer than 2 s\.$/),
  ]);
  const slow = await agent();
  const mark = `sleep 86${Date.now() % 1_000_000}`;
  script([call("exec", { command: `exec ${mark}` })]);
  const { run_id } = await invoke(slow, { wait_s: 0 });
  await expect.poll(() => isRunning(mark), { timeout: 10_000 }).toBe(true);
  await owner.post(`/v1/agents/runs/${run_id}/cancel`);
  await expect.poll(() => isRunning(mark), { timeout: 10_000 }).toBe(false);
  expect((await owner.get(`/v1/agents/runs/${run_id}`)).json).toMatchObject({ error_code: "cancelled" });
});

/** Returns true if the command runs. The processes of a fake machine are processes of this host. */
async function isRunning(command: string): Promise<boolean> {
  const driver = await box.driver.list();
  expect(driver.length).toBeGreaterThan(0);
  const { readdirSync, readFileSync } = await import("node:fs");
  return readdirSync("/proc").some((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ").trim() === command;
    } catch {
      return false;
    }
  });
}

test("runs code in a template with an interpreter, and offers no run_code in other templates", async () => {
  await box.app.machines.images.ensure("code-interpreter");
  const name = await agent({ template: "code-interpreter" });
  script([call("run_code", { code: "1 + 1" }), call("run_code", { code: "boom" })]);
  await invoke(name);
  expect(toolResults()).toEqual([
    "done\nresult:\n1 + 1\nstdout:\nout\n",
    "raised ValueError\nresult:\nValueError: no\nstdout:\nout\n",
  ]);
  const plain = await agent();
  script([]);
  model.script([{ text: ["So."] }]);
  await invoke(plain);
  expect(model.asked[0].tools.map(({ function: { name: tool } }: Json) => tool)).toEqual([
    "exec",
    "read_file",
    "write_file",
  ]);
  const few = await agent({ tools: ["read_file"] });
  script([call("exec", { command: "true" })]);
  await invoke(few);
  expect(toolResults()).toEqual(["There is no such tool."]);
});

test("sends a picture that code draws to a model that accepts pictures", async () => {
  await box.app.machines.images.ensure("code-interpreter");
  script([call("run_code", { code: "draw" })]);
  await invoke(await agent({ template: "code-interpreter" }, { model: { ...config.model, images: true } }));
  const [result, pictures] = model.asked.at(-1).messages.slice(-2);
  expect(result.content).toMatch(/^done\nresult:\n<Figure>\n[^]*\[image of type image\/png, 8 bytes, shown/);
  expect(pictures.content.slice(1)).toEqual([
    { type: "image_url", image_url: { url: `data:image/png;base64,${drawn}` } },
  ]);
});

test("parks an idle machine, refuses an invoke during the parking, and resumes the machine at a tool call", async () => {
  const name = await agent({ park_after_seconds: 60 });
  script([call("exec", { command: "echo kept > file" })]);
  const { session_id } = await invoke(name);
  const { sandbox_id } = await machineOf(name, session_id);
  await parkIdle(host.app);
  expect((await machineOf(name, session_id)).status).toBe("running");
  await wait(session_id, 61);
  const [reached, mayGoOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  onKillPoint(async (point) => {
    if (point !== "agent.vm.parking") return;
    reached.resolve();
    await mayGoOn.promise;
  });
  const parking = parkIdle(host.app);
  await reached.promise;
  expect((await machineOf(name, session_id)).status).toBe("parking");
  const refused = await owner.post(`/v1/agents/${name}/invoke`, { input: "Hi", session_id });
  expect([refused.status, refused.json.code, refused.headers.get("retry-after")]).toEqual([
    409,
    "session_parking",
    "1",
  ]);
  mayGoOn.resolve();
  await parking;
  onKillPoint(undefined);
  expect(await machineOf(name, session_id)).toEqual({ sandbox_id, status: "parked" });
  // A run that needs no machine leaves the machine parked.
  model.script([{ text: ["No need."] }]);
  expect((await invoke(name, { session_id })).status).toBe("completed");
  expect((await machineOf(name, session_id)).status).toBe("parked");
  script([call("exec", { command: "cat file" })]);
  await invoke(name, { session_id });
  expect(toolResults().at(-1)).toBe("exit code: 0\nstdout:\nkept\n");
  expect(await machineOf(name, session_id)).toEqual({ sandbox_id, status: "running" });
});

test("parks no machine during a run, except while the run waits for a person", async () => {
  const name = await agent({ park_after_seconds: 60 });
  script([call("exec", { command: "true" })]);
  const { session_id, run_id } = await invoke(name);
  await wait(session_id, 120);
  const change = (status: string) =>
    sql`update agent_runs set status = ${status}, finished_at = null, process_id = null where id = ${run_id}`.execute(
      host.app.db,
    );
  await host.runs.stop();
  await change("running");
  await parkIdle(host.app);
  expect((await machineOf(name, session_id)).status).toBe("running");
  const { sandbox_id } = await machineOf(name, session_id);
  await sql`update sandboxes set expires_at = expires_at - interval '5 minutes' where id = ${sandbox_id}`.execute(
    host.app.db,
  );
  const before = (await sandboxOf(sandbox_id)).expires_at.getTime();
  await keepMachinesAlive(host.app);
  expect((await sandboxOf(sandbox_id)).expires_at.getTime()).toBeGreaterThan(before);
  await change("pending_approval");
  await parkIdle(host.app);
  expect((await machineOf(name, session_id)).status).toBe("parked");
});
