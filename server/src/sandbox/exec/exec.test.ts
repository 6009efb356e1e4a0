import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { testDatabase } from "../../../test/harness.ts";
import { createSandbox } from "../sandboxes/lifecycle/create.ts";
import { createInput, personWithTier, testHost } from "../testing/sandbox-app.ts";
import { bufferedMaxBytes, exitCode, killedBy, lastFrame, runBuffered, startStreamed } from "./exec.ts";
import { Head } from "./head.ts";
import { Exec, ExecFrame, ExecResult } from "./schema.ts";

const { db } = await testDatabase();
const host = await testHost(db);
const { actor } = await personWithTier(db, "enterprise");
const { id, machine_id: machine } = await createSandbox(
  host.app,
  actor,
  createInput({ env: { OF: "sandbox" } }),
);

const run = (input: Record<string, unknown>) => runBuffered(host.app, actor, id, Exec.parse(input));

async function frames(input: Record<string, unknown>): Promise<ExecFrame[]> {
  const { frames: all } = await startStreamed(host.app, actor, id, Exec.parse({ ...input, stream: true }));
  return Array.fromAsync(all);
}

test("returns a command's output and exit in the wire's schema", async () => {
  const ran = await run({ command: "echo $OF $MINE; echo err >&2; exit 3", env: { MINE: "call" } });
  expect(ran).toMatchObject({ stdout: "sandbox call\n", stderr: "err\n", exit_code: 3, signal: null });
  expect(ExecResult.safeParse(ran).error).toBeUndefined();
});

test("refuses a user name that holds NUL", () => {
  const { error } = Exec.safeParse({ command: "true", user: "a\0b" });
  expect(error?.issues).toMatchObject([{ path: ["user"], message: "must not contain NUL" }]);
});

test("sends frames that match the wire's schema, and ends a stream with exactly one final frame", async () => {
  for (const command of ["echo a; exit 2", "kill -9 $$", "true"]) {
    const all = await frames({ command });
    for (const frame of all) expect(ExecFrame.safeParse(frame).error).toBeUndefined();
    expect(all.filter(({ kind }) => kind === "exec_exited" || kind === "error")).toHaveLength(1);
    expect(all.at(0)?.kind).toBe("exec_started");
  }
});

test("returns an invalid request, not a missing resource, for a missing working directory", async () => {
  await expect(run({ command: "true", cwd: "/not/there" })).rejects.toMatchObject({
    code: "exec_failed",
    status: 400,
    detail: expect.stringContaining("cwd"),
  });
});

test("reads output beyond the cap to its end and drops it", async () => {
  const ran = await run({ command: `head -c ${bufferedMaxBytes + 1} /dev/zero; head -c 5 /dev/zero >&2` });
  expect([ran.stdout.length, ran.stderr.length, ran.truncated]).toEqual([bufferedMaxBytes, 5, true]);
  const exact = await run({ command: `head -c ${bufferedMaxBytes} /dev/zero` });
  expect([exact.stdout.length, exact.truncated]).toEqual([bufferedMaxBytes, false]);
});

test("reports why the sandbox ended when its machine ends during a call, buffered and streamed", async () => {
  const buffered = run({ command: "sleep 60" });
  const { frames: streamed } = await startStreamed(
    host.app,
    actor,
    id,
    Exec.parse({ command: "sleep 60", stream: true }),
  );
  const last = (async () => (await Array.fromAsync(streamed)).at(-1))();
  host.driver.end(machine ?? "", "out_of_memory");
  await expect(buffered).rejects.toMatchObject({
    code: "sandbox_terminated",
    status: 409,
    meta: { termination_reason: "out_of_memory" },
  });
  expect(await last).toMatchObject({ kind: "error", code: "sandbox_terminated" });
});

test.for([
  [{ code: 0, signal: null, timedOut: false }, 0, { kind: "exec_exited", code: 0 }],
  [{ code: 255, signal: null, timedOut: false }, 255, { kind: "exec_exited", code: 255 }],
  [
    { code: null, signal: 15, timedOut: false },
    143,
    { kind: "error", code: "killed_by_signal", signal: "SIGTERM" },
  ],
  [
    { code: null, signal: 34, timedOut: false },
    162,
    { kind: "error", code: "killed_by_signal", signal: "SIG34" },
  ],
  [
    { code: null, signal: 9, timedOut: true },
    124,
    { kind: "error", code: "exec_timeout", signal: "SIGKILL" },
  ],
  // The command exited at the moment of its deadline, and the deadline takes precedence.
  [{ code: 0, signal: null, timedOut: true }, 124, { kind: "error", code: "exec_timeout", signal: null }],
] as const)("maps the exit %j to code %i and to a final frame", ([exit, code, frame]) => {
  const measured = { ...exit, outOfMemory: false, durationUs: 1_499 };
  expect(exitCode(measured)).toBe(code);
  expect(lastFrame(measured)).toMatchObject({ ...frame, duration_ms: 1 });
});

test.each([
  [{ code: null, signal: 9, timedOut: false }, "out_of_memory"],
  [{ code: 137, signal: null, timedOut: false }, "out_of_memory"],
  // The command survived the loss of a process, or reached its timeout.
  [{ code: 0, signal: null, timedOut: false }, null],
  [{ code: null, signal: 9, timedOut: true }, null],
] as const)("reports out of memory as the cause of %j: %s", (exit, cause) => {
  const measured = { ...exit, outOfMemory: true, durationUs: 1 };
  expect(killedBy(measured)).toBe(cause);
  expect(lastFrame(measured).kind).toBe(exit.code === null ? "error" : "exec_exited");
  expect((lastFrame(measured) as { killed_by?: string }).killed_by).toBe(cause ?? undefined);
});

test("keeps the first bytes of a stream across chunks, and replaces a split character with U+FFFD", () => {
  const head = new Head(5);
  for (const piece of ["ab", "cä", "rest"]) head.add(Buffer.from(piece));
  expect([head.text(), head.truncated]).toEqual(["abcä", true]);
  const cut = new Head(4);
  cut.add(Buffer.from("abcä"));
  expect([cut.text(), cut.truncated]).toEqual(["abc\uFFFD", true]);
  const exact = new Head(4);
  exact.add(Buffer.from("abcd"));
  exact.add(Buffer.alloc(0));
  expect([exact.text(), exact.truncated]).toEqual(["abcd", false]);
});

test("lists the hosts that the machine was denied during the call, and no others", async () => {
  const { id: other, machine_id: at } = await createSandbox(host.app, actor, createInput());
  const deny = (target: string) => host.app.machines.denials.add(at ?? "", { target, code: "not_allowed" });
  const exec = (command: string) => runBuffered(host.app, actor, other, Exec.parse({ command }));
  deny("before.test:443");
  expect(await exec("true")).not.toHaveProperty("egress_denied");
  host.app.machines.denials.add("another machine", { target: "other.test:443", code: "not_allowed" });
  const { frames: streamed } = await startStreamed(
    host.app,
    actor,
    other,
    Exec.parse({ command: "read line", stdin: "Cg==", stream: true }),
  );
  for (let n = 0; n < 30; n += 1) deny(`n${n % 25}.test:443`);
  const last = (await Array.fromAsync(streamed)).at(-1);
  const expected = Array.from({ length: 20 }, (_, n) => `n${n}.test:443`);
  expect(last).toMatchObject({ kind: "exec_exited", egress_denied: expected });
  expect(ExecFrame.safeParse(last).error).toBeUndefined();
  const mark = join(host.directory, "exec-mark");
  const running = exec(`touch ${mark}; while [ -e ${mark} ]; do sleep 0.02; done`);
  await expect.poll(() => existsSync(mark), { timeout: 10_000 }).toBe(true);
  deny("during.test:443");
  rmSync(mark);
  const ran = await running;
  expect(ran.egress_denied).toEqual(["during.test:443"]);
  expect(ExecResult.safeParse(ran).error).toBeUndefined();
});
