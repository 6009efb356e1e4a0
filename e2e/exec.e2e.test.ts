import { expect, test } from "vitest";
import type { Frame } from "./support/api.ts";
import { base64, eventually, expectRefusal } from "./support/answers.ts";
import {
  createSandbox,
  exec,
  getSandbox,
  output,
  server,
  sharedSandbox,
  streamExec,
  tryExec,
} from "./support/fixtures.ts";

const box = sharedSandbox({ env: { GREETING: "from the sandbox", SHARED: "sandbox" } });

/** Command that allocates three times the available memory at once. */
const eat = `echo started; perl -e '$x = "x" x (3 * 1024 ** 3); sleep 60'`;

/** Collects every frame of a stream that ends by itself. */
function all(body: Record<string, unknown>): Promise<Frame[]> {
  return Array.fromAsync(streamExec(box.id, body));
}

function text(frames: Frame[], stream: string): string {
  const chunks = frames.filter((frame) => frame.kind === "exec_chunk" && frame.stream === stream);
  return Buffer.concat(chunks.map(({ data }) => Buffer.from(data ?? "", "base64"))).toString();
}

test("runs exec, commands and sudo as the ordinary user, and files belong to this user", async () => {
  const as = (command: string) => tryExec(box.id, command, { user: "user" });
  const ran = await as(
    "id -un; touch ~/made; stat -c %U ~/made; sudo id -un; nproc; getconf _NPROCESSORS_ONLN",
  );
  expect(ran.body).toMatchObject({ stdout: "user\nuser\nroot\n1\n1\n", exit_code: 0 });
  expect((await as("touch /etc/made")).body.exit_code).toBe(1);
  const started = await server.api("POST", `/v1/sandboxes/${box.id}/commands`, {
    body: { command: "sudo touch /etc/made && stat -c %U /etc/made", user: "user" },
  });
  const logs = () => server.api("GET", `/v1/sandboxes/${box.id}/commands/${started.body.id}/logs`);
  await eventually(logs, ({ body }) => JSON.stringify(body).includes(base64("root\n")));
});

test("a buffered exec returns both streams, the exit code and the duration", async () => {
  const ran = await exec(box.id, "echo out; echo err >&2; exit 7");
  expect(ran).toEqual({
    stdout: "out\n",
    stderr: "err\n",
    exit_code: 7,
    duration_ms: expect.any(Number),
    timed_out: false,
    truncated: false,
    signal: null,
    killed_by: null,
  });
  expect(Number.isInteger(ran.duration_ms)).toBe(true);
});

test("runs a command with bash as root, in /workspace, with the sandbox's environment", async () => {
  expect(await output(box.id, 'echo "$BASH_VERSION" | grep -q . && id -un && pwd && echo "$HOME"')).toBe(
    "root\n/workspace\n/root",
  );
  expect(await output(box.id, 'echo "$GREETING"')).toBe("from the sandbox");
});

test("an exec call's env overrides the sandbox's env for this call only", async () => {
  const ran = await exec(box.id, 'echo "$SHARED $OWN $GREETING"', { env: { SHARED: "call", OWN: "ä=b" } });
  expect(ran.stdout).toBe("call ä=b from the sandbox\n");
  expect(await output(box.id, 'echo "$SHARED:$OWN"')).toBe("sandbox:");
});

test("uses the cwd and user of the call, and refuses a missing directory or user", async () => {
  expect((await exec(box.id, "pwd", { cwd: "/usr/bin" })).stdout).toBe("/usr/bin\n");
  expect((await exec(box.id, "id -un; id -gn", { user: "nobody", cwd: "/" })).stdout).toBe(
    "nobody\nnogroup\n",
  );
  expect((await exec(box.id, "id -u", { user: "1234", cwd: "/" })).stdout).toBe("1234\n");
  expectRefusal(await tryExec(box.id, "true", { cwd: "/not/there" }), 400, "exec_failed");
  expectRefusal(await tryExec(box.id, "true", { user: "nosuchuser" }), 400, "exec_failed");
});

test("args run a program without a shell, and pass each argument unchanged", async () => {
  const ran = await server.api("POST", `/v1/sandboxes/${box.id}/exec`, {
    body: { args: ["printf", "%s|", "$HOME", "a b", "", "*", "'"] },
  });
  expect(ran.body.stdout).toBe("$HOME|a b||*|'|");
  const missing = await server.api("POST", `/v1/sandboxes/${box.id}/exec`, {
    body: { args: ["no-such-program"] },
  });
  expectRefusal(missing, 400, "exec_failed");
});

test("a command reads the given stdin up to its end", async () => {
  const ran = await exec(box.id, "cat; echo end", { stdin: base64("line\n") });
  expect(ran.stdout).toBe("line\nend\n");
  expect((await exec(box.id, "cat; echo end")).stdout).toBe("end\n");
  // A command that never reads its input does not fail.
  const large = base64(Buffer.alloc(4 * 1024 ** 2, "x"));
  expect((await exec(box.id, "echo ignored", { stdin: large })).stdout).toBe("ignored\n");
  expect((await exec(box.id, "wc -c", { stdin: large })).stdout.trim()).toBe(String(4 * 1024 ** 2));
});

test("reports an end by a signal as exit code 128 + n, with the signal's name", async () => {
  const ran = await exec(box.id, "kill -TERM $$");
  expect(ran).toMatchObject({ exit_code: 143, signal: "SIGTERM", timed_out: false });
  expect(await exec(box.id, "kill -KILL $$")).toMatchObject({ exit_code: 137, signal: "SIGKILL" });
});

test("an exec that times out returns 124 with the output so far, and leaves no process", async () => {
  const ran = await exec(box.id, "echo started; sleep 4321 & sleep 4321", { timeout_seconds: 1 });
  expect(ran).toMatchObject({ exit_code: 124, timed_out: true, stdout: "started\n", signal: null });
  expect(await output(box.id, "pgrep -fc '^sleep 4321' || true")).toBe("0");
});

test("replaces invalid UTF-8 by U+FFFD in a buffered response, and streams the bytes unchanged", async () => {
  const print = String.raw`printf 'ok\xff\xfe\x00\x80end'`;
  expect((await exec(box.id, print)).stdout).toBe("ok\uFFFD\uFFFD\0\uFFFDend");
  const chunks = (await all({ command: print })).filter(({ kind }) => kind === "exec_chunk");
  expect(Buffer.concat(chunks.map(({ data }) => Buffer.from(data ?? "", "base64"))).toString("hex")).toBe(
    "6f6bfffe0080656e64",
  );
});

test("a streamed exec begins with exec_started, sends chunks in order, and ends with exec_exited", async () => {
  const frames = await all({ command: "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.05; done; exit 3" });
  expect(frames[0]).toEqual({ kind: "exec_started", pid: expect.any(Number) });
  expect(frames.at(-1)).toEqual({ kind: "exec_exited", code: 3, duration_ms: expect.any(Number) });
  const between = frames.slice(1, -1);
  expect(new Set(between.map(({ kind }) => kind))).toEqual(new Set(["exec_chunk"]));
  for (const frame of between) expect(Object.keys(frame).toSorted()).toEqual(["data", "kind", "stream"]);
  expect(text(frames, "stdout")).toBe("1\n2\n3\n");
  expect(text(frames, "stderr")).toBe("e1\ne2\ne3\n");
});

test("streams chunks while the command runs", async () => {
  const gate = "/tmp/gate";
  const stream = streamExec(box.id, {
    command: `echo waiting; while [ ! -e ${gate} ]; do sleep 0.05; done; echo done`,
  });
  const seen: Frame[] = [];
  for await (const frame of stream) {
    seen.push(frame);
    // The command cannot end before the gate file exists, so its first line arrived before its end.
    if (text(seen, "stdout") === "waiting\n") await exec(box.id, `touch ${gate}`);
  }
  expect(text(seen, "stdout")).toBe("waiting\ndone\n");
});

test("a streamed exec ends with an error frame instead of exec_exited after a timeout or a signal", async () => {
  const timeout = await all({ command: "echo before; sleep 60", timeout_seconds: 1 });
  expect(text(timeout, "stdout")).toBe("before\n");
  expect(timeout.at(-1)).toMatchObject({ kind: "error", code: "exec_timeout", message: expect.any(String) });
  const signal = await all({ command: "kill -USR1 $$" });
  expect(signal.at(-1)).toMatchObject({ kind: "error", code: "killed_by_signal", signal: "SIGUSR1" });
  for (const frames of [timeout, signal]) {
    expect(frames.filter(({ kind }) => kind === "exec_exited")).toEqual([]);
  }
});

test("ends a streamed exec when its caller disconnects", async () => {
  const hangUp = new AbortController();
  const stream = streamExec(box.id, { command: "echo up; sleep 5432 & sleep 5432" }, hangUp.signal);
  for await (const frame of stream) if (frame.kind === "exec_chunk") break;
  hangUp.abort();
  await eventually(
    () => output(box.id, "pgrep -fc '^sleep 5432' || true"),
    (count) => count === "0",
  );
});

test("a buffered exec runs to its end even if its caller disconnects", async () => {
  const hangUp = new AbortController();
  const call = server
    .api("POST", `/v1/sandboxes/${box.id}/exec`, {
      body: { command: "touch /tmp/began; sleep 1; echo whole > /tmp/ran-on" },
      signal: hangUp.signal,
    })
    .catch((error: Error) => error.name);
  await eventually(
    () => exec(box.id, "test -e /tmp/began"),
    (ran) => ran.exit_code === 0,
  );
  hangUp.abort();
  expect(await call).toBe("AbortError");
  await eventually(
    () => exec(box.id, "cat /tmp/ran-on"),
    (ran) => ran.stdout === "whole\n",
  );
});

test("cuts 100 MB of output at 8 MiB per stream, reports the cut, and keeps the server's memory small", async () => {
  // The first response of this size grows the heap once, which is not part of the measurement.
  await exec(box.id, `perl -e 'print "x" x 1e7'`);
  const before = server.residentBytes;
  const ran = await exec(box.id, `perl -e 'print "x" x 1e8'`);
  expect(ran.stdout.length).toBe(8 * 1024 ** 2);
  expect(ran).toMatchObject({ exit_code: 0, truncated: true, stderr: "" });
  // A response has 8 MiB of text and as much JSON; the output itself would be ten times that.
  expect(server.residentBytes - before).toBeLessThan(80 * 1024 ** 2);
});

test("streams a long output completely to a slow reader, and keeps the server's memory small", async () => {
  const before = server.residentBytes;
  let bytes = 0;
  let highest = 0;
  for await (const frame of streamExec(box.id, { command: "head -c 200000000 /dev/zero" })) {
    if (frame.kind !== "exec_chunk") continue;
    if (bytes === 0) await new Promise((resolve) => setTimeout(resolve, 500));
    if (bytes % 20 === 0) highest = Math.max(highest, server.residentBytes);
    bytes += Buffer.from(frame.data ?? "", "base64").length;
  }
  expect(bytes).toBe(200_000_000);
  // A busy heap grows by some tens of MB; the whole stream in memory would take 267 MB in base64.
  expect(highest - before).toBeLessThan(128 * 1024 ** 2);
});

test("ten concurrent commands in one sandbox each return their own output", async () => {
  const numbers = Array.from({ length: 10 }, (_, index) => index);
  const ran = await Promise.all(numbers.map((n) => exec(box.id, `sleep 0.2; echo ${n}; exit ${n}`)));
  expect(ran.map(({ stdout, exit_code }) => [stdout, exit_code])).toEqual(numbers.map((n) => [`${n}\n`, n]));
});

test("refuses an exec with neither command nor args, or with both, and names the field", async () => {
  const path = `/v1/sandboxes/${box.id}/exec`;
  for (const [body, field] of [
    [{}, "command"],
    [{ command: "" }, "command"],
    [{ command: "true", args: ["true"] }, "command"],
    [{ args: [] }, "args"],
    [{ command: "true", timeout_seconds: 0 }, "timeout_seconds"],
    [{ command: "true", timeout_seconds: 3601 }, "timeout_seconds"],
    [{ command: "a\0b" }, "command"],
    [{ command: "true", stdin: "%%%" }, "stdin"],
    [{ command: "true", env: { "A=B": "c" } }, "env"],
    [{ command: "true", stream: "yes" }, "stream"],
    [{ command: "true", comand: "x" }, "comand"],
  ] as const) {
    const reply = await server.api("POST", path, { body });
    expectRefusal(reply, 400, "invalid_request");
    expect(reply.body.detail, JSON.stringify(body)).toContain(field);
  }
});

test("a fork bomb affects no other sandbox, and the call's timeout kills all processes of the bomb", async () => {
  const bomber = await createSandbox();
  expect(await output(bomber.id, "ulimit -u")).toBe("1024");
  const bomb = tryExec(bomber.id, "bomb() { bomb | bomb & }; bomb; sleep 300", { timeout_seconds: 2 });
  for (let i = 0; i < 10; i += 1) expect(await output(box.id, `echo fine ${i}`)).toBe(`fine ${i}`);
  expect((await bomb).body).toMatchObject({ exit_code: 124, timed_out: true });
  // Two processes are left: PID 1, and the shell that counts.
  expect(await output(bomber.id, "cd /proc; set -- [0-9]*; echo $#")).toBe("2");
});

test("kills a command that uses too much memory, and keeps the sandbox running", async () => {
  const eater = await createSandbox();
  await exec(eater.id, "echo kept > file; (while :; do sleep 1; done) & echo $! > pid");
  const ran = await tryExec(eater.id, eat);
  expect(ran).toMatchObject({ status: 200, body: { killed_by: "out_of_memory", stdout: "started\n" } });
  expect(ran.body.exit_code).toBe(137);
  expect(await getSandbox(eater.id)).toMatchObject({ status: "running" });
  expect(await output(eater.id, "cat file; kill -0 $(cat pid) && echo alive")).toBe("kept\nalive");
});

test("ends a stream with killed_by when its command runs out of memory", async () => {
  const eater = await createSandbox();
  const frames = await Array.fromAsync(streamExec(eater.id, { command: eat }));
  expect(frames.at(-1)).toMatchObject({ killed_by: "out_of_memory" });
});
