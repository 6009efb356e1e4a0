/**
 * Agents with their own machines, on the real runtime. Files and processes outlive a run, the parking of a machine and
 * a killed server.
 */
import { type ModelServer, startModelServer } from "@kontor/server/agent/testing/model-server.ts";
import { afterAll, beforeAll, expect, test } from "vitest";
import { eventually } from "../support/answers.ts";
import { type Server, startServer } from "../support/server.ts";

let server: Server;
let model: ModelServer;
let credential: string;

beforeAll(async () => {
  model = await startModelServer();
  server = await startServer({ KONTOR_ALLOW_PRIVATE_HOSTS: "127.0.0.0/8" }, [
    "debian-12",
    "code-interpreter",
  ]);
  const made = await server.api("POST", "/v1/model-credentials", {
    body: { provider: "openai_compatible", name: "local", api_key: "none-needed", base_url: model.url },
  });
  credential = made.body.id;
});
afterAll(() => server?.destroy());

async function agent(name: string, vm: object, more: object = {}): Promise<void> {
  const use = { provider: "openai_compatible", id: "scripted", credential_id: credential };
  const config = { model: use, vm, ...more };
  const { status, body } = await server.api("POST", "/v1/agents", { body: { name, config } });
  expect(status, JSON.stringify(body)).toBe(201);
}

/** Makes the fake model request these calls in sequence, and return their results as text. */
function calls(...asked: [name: string, values: object][]): void {
  model.script(({ messages }) => {
    const question = messages.findLastIndex(({ role }: { role: string }) => role === "user");
    const told = messages.slice(question).filter(({ role }: { role: string }) => role === "tool");
    const next = asked[told.length];
    return next
      ? { calls: [{ name: next[0], arguments: JSON.stringify(next[1]) }] }
      : { text: [told.map(({ content }: { content: string }) => content).join("\n---\n")] };
  });
}
const runs = (command: string) => calls(["exec", { command }]);

async function invoke(name: string, body: object = {}) {
  const reply = await server.api("POST", `/v1/agents/${name}/invoke`, {
    body: { input: "Go on.", wait_s: 50, ...body },
  });
  expect(reply.status, JSON.stringify(reply.body)).toBeLessThan(300);
  return reply.body;
}

const session = async (name: string, id: string) =>
  (await server.api("GET", `/v1/agents/${name}/sessions/${id}`)).body;
const when = (name: string, id: string, status: string) =>
  eventually(
    () => session(name, id),
    ({ vm }) => vm.status === status,
  );
const sandbox = async (id: string) => (await server.api("GET", `/v1/sandboxes/${id}`)).body;

test("an agent's files and processes survive a pause to disk, and are removed with the session", async () => {
  await agent("keeper", { park_after_seconds: 1 });
  runs("echo kept > file; (while :; do sleep 1; done) & echo $! > pid; uname -s");
  const first = await invoke("keeper");
  expect(first).toMatchObject({ status: "completed", output: "exit code: 0\nstdout:\nLinux\n" });
  const { vm } = await when("keeper", first.session_id, "parked");
  expect(await sandbox(vm.sandbox_id)).toMatchObject({
    status: "paused",
    metadata: { agent_session: first.session_id },
  });
  runs("cat file; kill -0 $(cat pid) && echo alive");
  const again = await invoke("keeper", { session_id: first.session_id });
  expect(again).toMatchObject({ status: "completed", output: "exit code: 0\nstdout:\nkept\nalive\n" });
  expect((await session("keeper", first.session_id)).vm.sandbox_id).toBe(vm.sandbox_id);
  const ended = await server.api("DELETE", `/v1/agents/keeper/sessions/${first.session_id}`);
  expect(ended.status).toBe(204);
  await eventually(
    () => sandbox(vm.sandbox_id),
    ({ status }) => status === "terminated",
  );
});

/** A slow command that records each of its starts. */
const slow = "echo start >> starts; sleep 5; echo done";
const finished = "exit code: 0\nstdout:\ndone\n";

/** Returns the sandbox of a session once the slow command runs in it. */
async function whenStarted(name: string, id: string): Promise<string> {
  const { vm } = await when(name, id, "running");
  await eventually(
    () => server.api("GET", `/v1/sandboxes/${vm.sandbox_id}/files/stat?path=starts`),
    ({ body }) => body?.exists === true,
  );
  return vm.sandbox_id;
}

const whenOver = (id: string) =>
  eventually(
    async () => (await server.api("GET", `/v1/agents/runs/${id}`)).body,
    ({ finished_at }) => finished_at !== null,
  );

/** Returns the output of a command in a later run of the session. */
async function later(name: string, id: string, command: string): Promise<string> {
  runs(command);
  return (await invoke(name, { session_id: id })).output;
}

test("delivers a command's output once when the server is killed during the command", async () => {
  await agent("killed", {});
  runs(slow);
  const { run_id, session_id } = await invoke("killed", { wait_s: 0 });
  await whenStarted("killed", session_id);
  await server.kill9();
  await server.start();
  expect(await whenOver(run_id)).toMatchObject({
    status: "completed",
    attempts: 2,
    output: finished,
    tools_called: [{ tool: "exec", status: "completed" }],
  });
  expect(await later("killed", session_id, "cat starts")).toBe("exit code: 0\nstdout:\nstart\n");
  await server.api("DELETE", `/v1/agents/killed/sessions/${session_id}`);
});

test.each([
  // The machine has started the command, but the server has not recorded it.
  ["agent.command.started", finished, "start\n"],
  ["agent.command.noted", expect.stringContaining("not known"), "none\n"],
  // The journal shows that the command did not start.
  ["agent.call.began", finished, "start\n"],
])("starts a command at most once when the server is killed at %s", async (point, output, starts) => {
  const name = `killed-at-${point.split(".").at(-1)}`;
  await agent(name, {});
  runs(slow);
  let run = { run_id: "", session_id: "" };
  await server.dieAt(point, async () => {
    run = await invoke(name, { wait_s: 0 });
  });
  expect(await whenOver(run.run_id)).toMatchObject({ status: "completed", attempts: 2, output });
  expect(await later(name, run.session_id, "cat starts 2>/dev/null || echo none")).toBe(
    `exit code: 0\nstdout:\n${starts}`,
  );
  await server.api("DELETE", `/v1/agents/${name}/sessions/${run.session_id}`);
});

test("delivers the output of a command whose machine was paused during the command", async () => {
  await agent("paused", {});
  runs(slow);
  const { run_id, session_id } = await invoke("paused", { wait_s: 0 });
  const id = await whenStarted("paused", session_id);
  expect((await server.api("POST", `/v1/sandboxes/${id}/pause`)).status).toBe(200);
  expect(await whenOver(run_id)).toMatchObject({ status: "completed", output: finished });
  await server.api("DELETE", `/v1/agents/paused/sessions/${session_id}`);
});

test("kills the command of a run that is cancelled, and of a run that exceeds its time limit", async () => {
  await agent("stopped", {}, { limits: { max_seconds: 10 } });
  const none = "pgrep -fx 'sleep 30[01]' || echo none";
  runs("echo start >> starts; sleep 300");
  const { run_id, session_id } = await invoke("stopped", { wait_s: 0 });
  await whenStarted("stopped", session_id);
  await server.api("POST", `/v1/agents/runs/${run_id}/cancel`);
  await eventually(
    () => later("stopped", session_id, none),
    (output) => output === "exit code: 0\nstdout:\nnone\n",
  );
  runs("sleep 301");
  const late = await invoke("stopped", { session_id });
  expect(late).toMatchObject({ status: "failed", error_code: "limit_time" });
  await eventually(
    () => later("stopped", session_id, none),
    (output) => output === "exit code: 0\nstdout:\nnone\n",
  );
  await server.api("DELETE", `/v1/agents/stopped/sessions/${session_id}`);
});

test("kills a command that runs out of memory, and keeps the agent's machine running", async () => {
  await agent("greedy", {});
  runs("echo kept > file; tail /dev/zero");
  const first = await invoke("greedy");
  expect(first).toMatchObject({
    status: "completed",
    output: "killed by SIGKILL (the machine ran out of memory)",
  });
  runs("cat file");
  const next = await invoke("greedy", { session_id: first.session_id });
  expect(next).toMatchObject({ status: "completed", output: "exit code: 0\nstdout:\nkept\n" });
  await server.api("DELETE", `/v1/agents/greedy/sessions/${first.session_id}`);
});

test("an agent's code keeps its variables between calls and across a pause to disk, and returns charts", async () => {
  await agent("coder", { template: "code-interpreter", park_after_seconds: 1 });
  const draw = "import matplotlib.pyplot as plt; _ = plt.plot(squares); plt.show()";
  calls(
    ["run_code", { code: "squares = [n * n for n in range(4)]\nprint('made')" }],
    ["run_code", { code: "open('sum', 'w').write(str(sum(squares)))\nsquares" }],
    ["run_code", { code: draw }],
    ["run_code", { code: "squares[9]" }],
    ["exec", { command: "cat sum" }],
  );
  const first = await invoke("coder");
  expect(first.status).toBe("completed");
  expect(first.output.split("\n---\n")).toEqual([
    "done\nstdout:\nmade\n",
    "done\nresult:\n[0, 1, 4, 9]",
    expect.stringMatching(/^done\nresult:\n.*\[image of type image\/png, \d{4,} bytes, left out\]$/s),
    expect.stringMatching(/^raised IndexError\nresult:\n.*list index out of range/s),
    "exit code: 0\nstdout:\n14",
  ]);
  await when("coder", first.session_id, "parked");
  calls(["run_code", { code: "squares[-1]" }]);
  const again = await invoke("coder", { session_id: first.session_id });
  expect(again).toMatchObject({ status: "completed", output: "done\nresult:\n9" });
  await server.api("DELETE", `/v1/agents/coder/sessions/${first.session_id}`);
});
