/**
 * Commands of a session's machine outlive the server process that started the command. Each command is started at most
 * once.
 */
import { sql } from "kysely";
import { afterEach, expect, test } from "vitest";
import { onKillPoint } from "#lib/kill-points.ts";
import { cutOffByPause } from "#sandbox/sandboxes/errors.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { readFrames } from "../testing/events.ts";
import { agent, call, host, invoke, machineOf, owner, script, toolResults } from "../testing/machine-host.ts";
import { RunExecutor } from "../runs/engine/run-executor.ts";
import { killOrphans } from "./kill-commands.ts";

// Each test starts and stops its own servers.
await host.runs.stop();
const servers: RunExecutor[] = [];
afterEach(async () => {
  onKillPoint(undefined);
  for (const server of servers.splice(0)) await server.stop();
});

async function startServer(): Promise<RunExecutor> {
  const server = new RunExecutor(host.app, { hostId: "test", pauseMs: 5 });
  servers.push(server);
  await server.start();
  return server;
}

/** Command that appends a line at each start, and exits when the file `go` exists. */
const waiting = "echo start >> starts; echo begun; until [ -e go ]; do sleep 0.05; done; echo done; exit 3";
const finished = "exit code: 3\nstdout:\nbegun\ndone\n";
const files = (id: string, path: string) => `/v1/sandboxes/${id}/files?path=${path}`;

async function read(sandbox: string, path: string): Promise<string | undefined> {
  const reply = await owner.get(files(sandbox, path));
  return reply.status === 200 ? Buffer.from(reply.json.content, "base64").toString() : undefined;
}
async function go(sandbox: string): Promise<void> {
  const { status } = await owner.post(`/v1/sandboxes/${sandbox}/files`, { path: "go", content: "" });
  expect(status).toBe(200);
}

/** Starts a run that executes the command, and returns a function that finds the run's sandbox. */
async function begin(command: string, values: object = {}) {
  const name = await agent();
  script([call("exec", { command, ...values })]);
  const { run_id, session_id } = await invoke(name, { wait_s: 0 });
  const sandbox = async (): Promise<string> => (await machineOf(name, session_id)).sandbox_id;
  const waitForStart = async () => {
    const isNoted = async () => (await commandOf(run_id))?.command_sandbox_id != null;
    await expect.poll(isNoted, { timeout: 20_000 }).toBe(true);
    const id = await sandbox();
    await expect.poll(() => read(id, "starts"), { timeout: 20_000 }).toBe("start\n");
  };
  return { run_id, sandbox, started: waitForStart };
}

const run = async (id: string) => (await owner.get(`/v1/agents/runs/${id}`)).json;

async function eventsOf(runId: string): Promise<string[]> {
  const { frames } = await readFrames(`${host.baseUrl}/v1/agents/runs/${runId}/stream`, {
    token: owner.token,
  });
  return frames.map(({ data }) => data.type).filter((type) => type.startsWith("tool."));
}

const commandOf = async (runId: string) =>
  (
    await sql<{ status: string; command_id: string | null; command_sandbox_id: string | null }>`
      select status, command_id, command_sandbox_id from agent_tool_calls where run_id = ${runId}`.execute(
      host.app.db,
    )
  ).rows[0];

test("returns the output of a command that continued during a restart of the server", async () => {
  const first = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await started();
  await first.stop();
  const next = await startServer();
  await go(await sandbox());
  await next.waitForOutcome(run_id, 20_000);
  expect(await run(run_id)).toMatchObject({
    status: "completed",
    attempts: 2,
    tools_called: [{ tool: "exec", status: "completed" }],
  });
  expect(toolResults()).toEqual([finished]);
  expect(await read(await sandbox(), "starts")).toBe("start\n");
  expect(await eventsOf(run_id)).toEqual(["tool.input", "tool.started", "tool.completed"]);
});

test("returns the output of a command that ended while no server ran, even after the call's time limit", async () => {
  const first = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await started();
  await first.stop();
  await sql`update agent_tool_calls set started_at = started_at - interval '1 day' where run_id = ${run_id}`.execute(
    host.app.db,
  );
  await go(await sandbox());
  const next = await startServer();
  await next.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual([finished]);
});

test.each([
  // The command had not started, so the next process starts it.
  ["agent.call.began", finished, "start\n"],
  // The journal does not contain the start of the command.
  ["agent.command.started", finished, "start\n"],
  ["agent.command.noted", expect.stringContaining("not known"), undefined],
])("starts a command at most once if the server hangs at %s", async (point, result, starts) => {
  const there = Promise.withResolvers<void>();
  const stuck = Promise.withResolvers<void>();
  onKillPoint(async (reached) => {
    if (reached !== point) return;
    onKillPoint(undefined);
    there.resolve();
    await stuck.promise;
  });
  const hung = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await there.promise;
  const next = await startServer();
  if (starts !== undefined) {
    await started();
    await go(await sandbox());
  }
  await next.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual([result]);
  if (starts !== undefined) {
    // The first process now finds that another process has acquired the run.
    stuck.resolve();
    await hung.stop();
  }
  expect(await read(await sandbox(), "starts")).toBe(starts);
  expect((await eventsOf(run_id)).filter((type) => type !== "tool.started")).toEqual([
    "tool.input",
    starts === undefined ? "tool.failed" : "tool.completed",
  ]);
});

test("keeps the time limit of a command across a restart", async () => {
  const first = await startServer();
  const { run_id, started } = await begin(waiting, { timeout_seconds: 2 });
  await started();
  await first.stop();
  const next = await startServer();
  await next.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual(["The command was killed after 2 s.\nstdout:\nbegun\n"]);
});

test("kills the command of a run that is cancelled while no process executes the run", async () => {
  const first = await startServer();
  const { run_id, sandbox, started } = await begin(`echo $$ > pid; ${waiting}`);
  await started();
  const isRunning = async () => {
    const pid = Number(await read(await sandbox(), "pid"));
    try {
      // The processes of a fake machine are processes of this host, so a signal reaches them.
      return process.kill(pid, 0);
    } catch {
      return false;
    }
  };
  await first.stop();
  await killOrphans(host.app);
  expect(await isRunning()).toBe(true);
  await owner.post(`/v1/agents/runs/${run_id}/cancel`);
  await killOrphans(host.app);
  await expect.poll(isRunning, { timeout: 10_000 }).toBe(false);
  expect(await commandOf(run_id)).toMatchObject({ status: "running", command_id: null });
});

test("reports an unknown outcome if the machine of a command was deleted while no server ran", async () => {
  const first = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await started();
  await first.stop();
  await endSandbox(host.app, { id: await sandbox(), reason: "requested" });
  const next = await startServer();
  await next.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual([expect.stringContaining("not known")]);
  expect(await run(run_id)).toMatchObject({
    status: "completed",
    tools_called: [{ tool: "exec", status: "unknown" }],
  });
});

test("reports that the machine dropped output while no server read it", async () => {
  const first = await startServer();
  const { run_id, sandbox, started } = await begin(
    "echo start >> starts; until [ -e go ]; do sleep 0.05; done; head -c 20000000 /dev/zero | tr '\\0' a; echo end; touch over",
  );
  await started();
  await first.stop();
  await go(await sandbox());
  await expect.poll(async () => await read(await sandbox(), "over"), { timeout: 20_000 }).toBe("");
  const next = await startServer();
  await next.waitForOutcome(run_id, 20_000);
  const [text] = toolResults();
  expect(Buffer.byteLength(text!)).toBeLessThan(64 * 1024);
  expect(text).toMatch(
    /^exit code: 0\n\[\d{7} bytes of output were not kept\]\nstdout:\na+\n\[\d+ bytes left out\]\na+end\n$/,
  );
});

test("runs a command with an empty, closed stdin", async () => {
  const server = await startServer();
  const { run_id } = await begin("cat; echo end");
  await server.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual(["exit code: 0\nstdout:\nend\n"]);
});

test("waits for the end of a command whose start request a pause interrupted", async () => {
  onKillPoint(async (reached) => {
    if (reached !== "agent.command.started") return;
    onKillPoint(undefined);
    throw cutOffByPause();
  });
  const server = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await started();
  await go(await sandbox());
  await server.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual([finished]);
  expect(await read(await sandbox(), "starts")).toBe("start\n");
});

test("hides an agent's command from the sandbox API of its owner and of other workspaces", async () => {
  const server = await startServer();
  const { run_id, sandbox, started } = await begin(waiting);
  await started();
  const id = await sandbox();
  const { command_id: command } = (await commandOf(run_id))!;
  const stranger = await host.person();
  for (const who of [owner, stranger])
    for (const [method, path, body] of [
      ["GET", ""],
      ["GET", "/logs"],
      ["DELETE", ""],
      ["POST", "/stdin", { data: "", eof: true }],
    ] as const) {
      const reply = await who.call(method, `/v1/sandboxes/${id}/commands/${command}${path}`, body);
      expect([method, path, reply.status]).toEqual([method, path, 404]);
    }
  const shown = JSON.stringify([
    (await sql`select * from agent_events where run_id = ${run_id}`.execute(host.app.db)).rows,
    (await owner.get(`/v1/sandboxes/${id}/commands`)).json,
    await run(run_id),
  ]);
  expect(shown).not.toContain(command);
  await go(id);
  await server.waitForOutcome(run_id, 20_000);
  expect(toolResults()).toEqual([finished]);
});

test("keeps the beginning and the end of a command's endless output", async () => {
  const server = await startServer();
  const { run_id } = await begin("echo first; yes | head -c 100000000; echo; echo last");
  await server.waitForOutcome(run_id, 50_000);
  const [text] = toolResults();
  expect(Buffer.byteLength(text!)).toBeLessThan(64 * 1024);
  expect(text).toMatch(/^exit code: 0\n(?:\[\d+ bytes of output were not kept\]\n)?stdout:\n/);
  expect(text).toMatch(/bytes left out\][^]*last\n$/);
});
