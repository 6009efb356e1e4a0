/** Agents with machines of their own, on the real runtime: what is in one survives parking, a killed server and a run. */
import { type ModelServer, startModelServer } from "@kontor/server/agent/testing/model-server.ts";
import { afterAll, beforeAll, expect, test } from "vitest";
import { eventually } from "../answers.ts";
import { type Server, startServer } from "../server.ts";

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

async function agent(name: string, vm: object): Promise<void> {
  const config = { model: { provider: "openai_compatible", id: "scripted", credential_id: credential }, vm };
  const { status, body } = await server.api("POST", "/v1/agents", { body: { name, config } });
  expect(status, JSON.stringify(body)).toBe(201);
}

/** The model calls these one after the other, and says what it was told. */
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

test("what an agent wrote and started is there again after its machine was on disk, and goes with the session", async () => {
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

test("a server that is killed under a command goes on with the run, which is told that nobody knows", async () => {
  await agent("killed", {});
  runs("echo begun > mark; sleep 300");
  const { run_id, session_id } = await invoke("killed", { wait_s: 0 });
  const { vm } = await when("killed", session_id, "running");
  await eventually(
    () => server.api("GET", `/v1/sandboxes/${vm.sandbox_id}/files/stat?path=mark`),
    ({ body }) => body?.exists === true,
  );
  await server.kill9();
  await server.start();
  const over = await eventually(
    async () => (await server.api("GET", `/v1/agents/runs/${run_id}`)).body,
    ({ finished_at }) => finished_at !== null,
  );
  expect(over).toMatchObject({
    status: "completed",
    attempts: 2,
    output: expect.stringContaining("not known"),
    tools_called: [{ tool: "exec", status: "unknown" }],
  });
  runs("cat mark; pgrep -fx 'sleep 300' || echo none");
  const next = await invoke("killed", { session_id });
  expect(next).toMatchObject({ status: "completed", output: "exit code: 0\nstdout:\nbegun\nnone\n" });
  await server.api("DELETE", `/v1/agents/killed/sessions/${session_id}`);
});

test("kills a command that runs out of memory, and keeps its machine running", async () => {
  await agent("greedy", {});
  runs("echo kept > file; tail /dev/zero");
  const first = await invoke("greedy");
  expect(first).toMatchObject({
    status: "completed",
    output: "ended by SIGKILL (the machine ran out of memory)",
  });
  runs("cat file");
  const next = await invoke("greedy", { session_id: first.session_id });
  expect(next).toMatchObject({ status: "completed", output: "exit code: 0\nstdout:\nkept\n" });
  await server.api("DELETE", `/v1/agents/greedy/sessions/${first.session_id}`);
});

test("an agent's code has its variables from call to call, and after its machine was on disk; what it draws comes back", async () => {
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
