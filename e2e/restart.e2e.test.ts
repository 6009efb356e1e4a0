import { afterEach, expect, test } from "vitest";
import { eventually, expectRefusal, type Sandbox } from "./support/answers.ts";
import {
  createSandbox,
  deleteSandbox,
  exec,
  getSandbox,
  output,
  server,
  streamExec,
  tryExec,
} from "./support/fixtures.ts";
import { machineProcesses, machinesOf } from "./support/host-state.ts";

afterEach(() => server.start());

const counter = "n=0; while :; do n=$((n + 1)); echo $n > /tmp/counter; sleep 0.05; done";

function runningIds(): Promise<string[]> {
  return server
    .api("GET", "/v1/sandboxes?status=running&limit=100")
    .then(({ body }) => body.items.map(({ id }: Sandbox) => id).toSorted());
}

/** Creates five sandboxes with a file each. In one of them, a process counts in the background. */
async function five(): Promise<Sandbox[]> {
  const boxes = await Promise.all(
    Array.from({ length: 5 }, (_, n) => createSandbox({ env: { N: String(n) }, timeout_seconds: 1800 })),
  );
  await Promise.all(boxes.map(({ id }, n) => exec(id, `echo ${n} > /workspace/number`)));
  await exec(boxes[0]?.id ?? "", `nohup bash -c '${counter}' >/dev/null 2>&1 &`);
  return boxes;
}

async function expectUnharmed(boxes: Sandbox[]): Promise<void> {
  expect(await runningIds()).toEqual(boxes.map(({ id }) => id).toSorted());
  for (const [n, box] of boxes.entries()) {
    expect(await getSandbox(box.id)).toEqual({ ...box, egress_denied: expect.any(Number) });
    expect(await output(box.id, "cat /workspace/number; echo $N; hostname")).toBe(
      `${n}\n${n}\n${box.id.replace("_", "-")}`,
    );
  }
  const counts = async () => Number(await output(boxes[0]?.id ?? "", "cat /tmp/counter || echo 0"));
  const now = await counts();
  expect(now).toBeGreaterThan(0);
  await eventually(counts, (later) => later > now);
}

test("after kill -9 all sandboxes have their files and processes, and none is lost or duplicated", async () => {
  const boxes = await five();
  const before = machineProcesses(server.dataDir);
  await server.kill9();
  await server.start();
  await expectUnharmed(boxes);
  // The processes are the same as before: adopted, and not started again.
  const after = machineProcesses(server.dataDir);
  expect(before.filter((pid) => after.includes(pid)).length).toBeGreaterThan(0);
  const owned = boxes.length;
  await eventually(
    async () => machinesOf(server.dataDir).length,
    // Further machines wait in the pool.
    (count) => count >= owned && count <= owned + 8,
  );
});

test("a graceful stop keeps sandboxes running, and the next server adopts them", async () => {
  const boxes = await five();
  await server.stop();
  const running = machineProcesses(server.dataDir);
  expect(running.length).toBeGreaterThanOrEqual(5);
  await server.start();
  await expectUnharmed(boxes);
});

test("deletes a sandbox that was created before a restart, and records the requested delete as the reason", async () => {
  const box = await createSandbox();
  const before = machinesOf(server.dataDir).length;
  expect(before).toBeGreaterThan(0);
  await server.kill9();
  await server.start();
  await deleteSandbox(box.id);
  expect(await getSandbox(box.id)).toMatchObject({ status: "terminated", termination_reason: "requested" });
  expectRefusal(await tryExec(box.id, "true"), 409, "sandbox_terminated");
});

test("terminates a sandbox as host_lost if its machine died while the server was down", async () => {
  const box = await createSandbox();
  const others = await createSandbox();
  const victim = machineOf(box);
  await server.kill9();
  killMachine(victim);
  await server.start();
  expect(await getSandbox(box.id)).toMatchObject({ status: "terminated", termination_reason: "host_lost" });
  expect(await output(others.id, "echo here")).toBe("here");
});

test("ends a sandbox at once when its machine is killed while the server runs", async () => {
  const box = await createSandbox();
  const victim = machineOf(box);
  const call = tryExec(box.id, "sleep 60");
  await exec(box.id, "true");
  killMachine(victim);
  expectRefusal(await call, 409, "sandbox_terminated");
  expect(await getSandbox(box.id)).toMatchObject({ status: "terminated", termination_reason: "host_lost" });
});

test("a streamed exec ends when the server is killed", async () => {
  const box = await createSandbox();
  const stream = streamExec(box.id, { command: "echo up; sleep 6543 & sleep 6543" });
  const broken = (async () => {
    for await (const frame of stream) if (frame.kind === "exec_chunk") await server.kill9();
  })();
  await expect(broken).rejects.toThrow(/terminated/);
  await server.start();
  await eventually(
    () => output(box.id, "pgrep -fc '^sleep 6543' || true"),
    (count) => count === "0",
  );
});

test("ends sandboxes at the next start whose deadline passed while the server was down", async () => {
  const box = await createSandbox();
  await server.stop();
  // The shortest lifetime is ten seconds, so the deadline is moved into the past instead.
  await server.sql("update sandboxes set expires_at = now() - interval '1 second' where id = $1", [box.id]);
  await server.start();
  const ended = await eventually(
    () => getSandbox(box.id),
    ({ status }) => status === "terminated",
  );
  expect(ended).toMatchObject({ termination_reason: "timeout" });
});

test("freezes processes of a suspended workspace, even across kill -9, and thaws them after the suspension", async () => {
  const box = await createSandbox({ timeout_seconds: 1800 });
  await exec(box.id, `nohup bash -c '${counter}' >/dev/null 2>&1 &`);
  await eventually(
    async () => Number(await output(box.id, "cat /tmp/counter || echo 0")),
    (count) => count > 0,
  );
  const before = machineProcesses(server.dataDir, machineOf(box));
  const suspend = (at: string) =>
    server.sql(
      `update workspaces set suspended_at = ${at} where owner_user_id = (select id from users where is_operator)`,
      [],
    );
  const file = () => server.api("GET", `/v1/sandboxes/${box.id}/files?path=/tmp/counter`);
  const untilFrozen = () => eventually(file, ({ body }) => body?.code === "account_suspended");
  try {
    await suspend("now()");
    await untilFrozen();
    await server.kill9();
    await server.start();
    await untilFrozen();
    expect(await getSandbox(box.id)).toMatchObject({ status: "running" });
  } finally {
    await suspend("null");
  }
  const isBack = async () => (await tryExec(box.id, "cat /tmp/counter")).status === 200;
  await eventually(isBack, Boolean);
  const counts = async () => Number(await output(box.id, "cat /tmp/counter || echo 0"));
  const now = await counts();
  await eventually(counts, (later) => later > now);
  expect(machineProcesses(server.dataDir, machineOf(box))).toEqual(expect.arrayContaining(before));
  const { expires_at: deadline } = await getSandbox(box.id);
  expect(Date.parse(String(deadline))).toBeGreaterThan(Date.parse(String(box.expires_at)));
});

/** Finds the machine of a sandbox; its record has the sandbox's host name. */
function machineOf(box: Sandbox): string {
  const record = machinesOf(server.dataDir).find(({ spec }) => spec.hostname === box.id.replace("_", "-"));
  if (!record) throw new Error(`no machine of ${box.id}`);
  return record.spec.id;
}

/** Kills all processes at once, like the kernel when memory is used up, or an operator with a wrong pid. */
function killMachine(machine: string): void {
  for (const pid of machineProcesses(server.dataDir, machine)) {
    try {
      process.kill(pid, "SIGKILL");
    } catch (error) {
      // Other processes end with the first one.
      if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
    }
  }
}
