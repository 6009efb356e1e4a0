import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { eventually, expectRefusal, type Sandbox } from "./support/answers.ts";
import {
  createSandbox,
  deleteSandbox,
  exec,
  getSandbox,
  output,
  readFile,
  server,
  streamExec,
  tryExec,
  writeFile,
} from "./support/fixtures.ts";
import { machineProcesses, machinesOf } from "./support/host-state.ts";

afterEach(() => server.start());

const pause = (id: string) => server.api("POST", `/v1/sandboxes/${id}/pause`);
const resume = (id: string) => server.api("POST", `/v1/sandboxes/${id}/resume`);

async function pauseSandbox(id: string): Promise<void> {
  const reply = await pause(id);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
}

async function resumeSandbox(id: string): Promise<Sandbox> {
  const reply = await resume(id);
  expect(reply.status, JSON.stringify(reply.body)).toBe(200);
  return reply.body as Sandbox;
}

/** Finds the machine of a sandbox; its record has the sandbox's host name. */
const machinesFor = ({ id }: { id: string }) =>
  machinesOf(server.dataDir).filter(({ spec }) => spec.hostname === id.replace("_", "-"));

const snapshots = () => {
  const directory = join(server.dataDir, "snapshots");
  return existsSync(directory) ? readdirSync(directory) : [];
};

/** Command that counts in a shell variable, so that only its memory has the count. */
const counter = `setsid bash -c 'n=0; while :; do n=$((n + 1)); echo $n >> /workspace/counts; sleep 0.02; done' >/dev/null 2>&1 &
  until [ -s /workspace/counts ]; do sleep 0.01; done`;

/** Checks that the count continued without a gap or a repetition. */
async function expectCounting(id: string): Promise<void> {
  const counts = async () => (await output(id, "cat /workspace/counts")).split("\n").map(Number);
  const before = (await counts()).length;
  const after = await eventually(counts, (numbers) => numbers.length > before + 2);
  expect(after).toEqual(after.map((_, index) => index + 1));
}

test("a paused sandbox uses no memory of the host, and resumes with files, processes, environment and name", async () => {
  const box = await createSandbox({ env: { OWN: "mine" }, timeout_seconds: 300, metadata: { a: "b" } });
  await writeFile(box.id, "/workspace/kept", "kept");
  await exec(box.id, counter);
  const [machine] = machinesFor(box);
  expect(machineProcesses(server.dataDir, machine?.spec.id ?? "").length).toBeGreaterThan(0);

  const reply = await pause(box.id);
  expect(reply.body).toEqual({
    sandbox_id: box.id,
    snapshot_id: expect.stringMatching(/^snap_/),
    status: "paused",
    snapshot_size_mb: expect.any(Number),
    created_at: expect.any(String),
    paused_expires_at: null,
  });
  expect(snapshots()).toContain(reply.body.snapshot_id);
  expect(await getSandbox(box.id)).toMatchObject({ status: "paused", transition: null });
  await eventually(
    async () => machinesFor(box),
    (left) => left.length === 0,
  );
  expect(machineProcesses(server.dataDir, machine?.spec.id ?? "")).toEqual([]);
  expectRefusal(await tryExec(box.id, "true"), 409, "sandbox_paused");
  expectRefusal(await readFile(box.id, "/workspace/kept"), 409, "sandbox_paused");
  expectRefusal(await pause(box.id), 409, "sandbox_paused");
  const keepAlive = await server.api("POST", `/v1/sandboxes/${box.id}/timeout`, {
    body: { timeout_seconds: 60 },
  });
  expectRefusal(keepAlive, 409, "sandbox_paused");
  expect((await server.api("GET", `/v1/sandboxes/${box.id}/metrics`)).body).toMatchObject({
    sandbox_status: "paused",
    cpu: { usage_cores: null },
    samples: [],
  });

  const again = await resumeSandbox(box.id);
  expect(again).toEqual({ ...box, expires_at: expect.any(String), egress_denied: 0 });
  expect(Date.parse(again.expires_at)).toBeGreaterThan(Date.parse(box.expires_at));
  expect(await output(box.id, "cat kept; echo; echo $OWN; hostname")).toBe(
    `kept\nmine\n${box.id.replace("_", "-")}`,
  );
  await expectCounting(box.id);
  await eventually(
    async () => snapshots().includes(reply.body.snapshot_id),
    (isThere) => !isThere,
  );
});

test("twenty pauses and resumes lose no data or process", async () => {
  const box = await createSandbox({ timeout_seconds: 1800 });
  await exec(box.id, counter);
  for (let round = 0; round < 20; round += 1) {
    await exec(box.id, `echo ${round} > new; mv new last; touch gone; rm gone`);
    await pauseSandbox(box.id);
    await resumeSandbox(box.id);
    expect(await output(box.id, "cat last")).toBe(String(round));
  }
  await expectCounting(box.id);
}, 180_000);

test("a pause fails buffered and streamed calls in flight with its reason", async () => {
  const box = await createSandbox();
  const whole = tryExec(box.id, "touch whole; sleep 60");
  const stream = streamExec(box.id, { command: "touch stream; sleep 60" });
  const kinds = Array.fromAsync(stream, ({ kind, code }) => `${kind} ${code ?? ""}`);
  await exec(box.id, "until [ -e whole ] && [ -e stream ]; do sleep 0.01; done");
  await pauseSandbox(box.id);
  expectRefusal(await whole, 409, "sandbox_paused");
  expect(await kinds).toEqual(["exec_started ", "error sandbox_paused"]);
  await resumeSandbox(box.id);
});

test("a background command continues after a pause and resume, with its complete output", async () => {
  const box = await createSandbox();
  const command = "for n in $(seq 1 200); do echo $n; sleep 0.02; done";
  const started = await server.api("POST", `/v1/sandboxes/${box.id}/commands`, { body: { command } });
  expect(started.status).toBe(201);
  await pauseSandbox(box.id);
  await resumeSandbox(box.id);
  const ended = await eventually(
    () => server.api("GET", `/v1/sandboxes/${box.id}/commands/${started.body.id}`),
    ({ body }) => body.status !== "running",
  );
  expect(ended.body).toMatchObject({ status: "exited", exit_code: 0 });
  const logs = await server.api("GET", `/v1/sandboxes/${box.id}/commands/${started.body.id}/logs`);
  const text = logs.body.chunks.map(({ data }: { data: string }) => Buffer.from(data, "base64")).join("");
  expect(text).toBe(Array.from({ length: 200 }, (_, index) => `${index + 1}\n`).join(""));
});

test("an open outside connection does not prevent a pause, and is closed", async () => {
  const box = await createSandbox({ network: "restricted" });
  const talk = "exec 3<>/dev/tcp/10.0.0.1/3128 || exit; echo up > up; cat <&3; echo over > over";
  await exec(box.id, `setsid bash -c '${talk}' >/dev/null 2>&1 & until [ -s up ]; do sleep 0.01; done`);
  await pauseSandbox(box.id);
  await resumeSandbox(box.id);
  expect(await output(box.id, "until [ -s over ]; do sleep 0.05; done; cat over")).toBe("over");
  await pauseSandbox(box.id);
  await resumeSandbox(box.id);
});

test("many concurrent calls wake a sandbox with auto_resume only once, and all succeed", async () => {
  const box = await createSandbox({ auto_resume: true });
  await writeFile(box.id, "/workspace/kept", "kept");
  await pauseSandbox(box.id);
  const calls = await Promise.all([
    ...Array.from({ length: 5 }, () => tryExec(box.id, "cat kept")),
    ...Array.from({ length: 5 }, () => readFile(box.id, "/workspace/kept")),
  ]);
  expect(calls.map(({ status }) => status)).toEqual(Array.from(calls, () => 200));
  expect(await getSandbox(box.id)).toMatchObject({ status: "running" });
  expect(machinesFor(box)).toHaveLength(1);
});

test("pauses a sandbox with on_timeout=pause at its deadline; a resume restarts the lifetime", async () => {
  const box = await createSandbox({ timeout_seconds: 10, on_timeout: "pause" });
  await exec(box.id, counter);
  await eventually(
    () => getSandbox(box.id),
    ({ status }) => status === "paused",
  );
  expect(Date.now()).toBeGreaterThanOrEqual(Date.parse(box.expires_at));
  const again = await resumeSandbox(box.id);
  expect(Date.parse(again.expires_at)).toBeGreaterThan(Date.now() + 5_000);
  await expectCounting(box.id);
});

test("a paused sandbox survives a server restart, and a delete removes its snapshot", async () => {
  const box = await createSandbox();
  const { body } = await pause(box.id);
  await server.kill9();
  await server.start();
  expect(await getSandbox(box.id)).toMatchObject({ status: "paused" });
  expect(snapshots()).toContain(body.snapshot_id);
  await deleteSandbox(box.id);
  await eventually(
    async () => snapshots(),
    (left) => !left.includes(body.snapshot_id),
  );
  expectRefusal(await resume(box.id), 409, "sandbox_terminated");
});

const running = "running";
const whilePausing = {
  "pause.begun": running,
  "checkpoint.disconnected": running,
  "checkpoint.paused": running,
  "checkpoint.written": running,
  "checkpoint.stored": running,
  "pause.taken": running,
  "pause.committed": "paused",
};
const whileResuming = {
  "resume.begun": "paused",
  "restore.started": "paused",
  "resume.restored": "paused",
  "resume.committed": running,
};

test.each(Object.entries({ ...whilePausing, ...whileResuming }))(
  "after kill -9 at %s the sandbox is %s and complete, and can be paused, resumed and deleted",
  async (point, status) => {
    const box = await createSandbox({ timeout_seconds: 1800 });
    await exec(box.id, counter);
    if (point in whileResuming) await pauseSandbox(box.id);
    const move = point in whileResuming ? "resume" : "pause";
    await server.dieAt(point, () =>
      expect(server.api("POST", `/v1/sandboxes/${box.id}/${move}`)).rejects.toThrow("fetch failed"),
    );
    expect(await getSandbox(box.id)).toMatchObject({ status, transition: null });
    await eventually(
      async () => ({ machines: machinesFor(box).length, snapshots: snapshots().length }),
      (left) => left.machines + left.snapshots === 1,
    );
    if (status === "paused") await resumeSandbox(box.id);
    await expectCounting(box.id);
    await pauseSandbox(box.id);
    await resumeSandbox(box.id);
    await expectCounting(box.id);
    await deleteSandbox(box.id);
    expect(await getSandbox(box.id)).toMatchObject({ status: "terminated", termination_reason: "requested" });
  },
);
