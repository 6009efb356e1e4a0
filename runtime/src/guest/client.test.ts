import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeAll, expect, onTestFinished, test } from "vitest";
import type { GuestProcess, ProcessExit, SpawnSpec } from "../driver.ts";
import type { GuestClient } from "./client.ts";
import { buildGuest, isAlive, startGuest, until } from "./testing/guest-under-test.ts";

beforeAll(buildGuest);

interface Result extends ProcessExit {
  stdout: Buffer;
  stderr: Buffer;
}

async function collect(process: GuestProcess): Promise<Result> {
  const parts = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  for await (const { stream, data } of process.output) parts[stream].push(data);
  return {
    stdout: Buffer.concat(parts.stdout),
    stderr: Buffer.concat(parts.stderr),
    ...(await process.exit),
  };
}

async function run(client: GuestClient, spec: Omit<SpawnSpec, "onDisconnect">): Promise<Result> {
  return collect(await client.spawn({ ...spec, onDisconnect: "kill" }));
}

const text = (result: Result): string => result.stdout.toString();

// ---- processes

test("gives a program its argv, environment and directory, and only three descriptors", async () => {
  const { client, directory } = await startGuest();
  const shell = 'printf "%s|" "$@" "$A" "$PWD" "$HOME" "$USER" "$LANG"; ls /proc/self/fd | tr "\\n" " "';
  const argv = ["/bin/sh", "-c", shell, "sh", "a b", ""];
  const result = await run(client, { argv, env: { A: "x=ä" }, cwd: directory, user: "0" });
  expect(text(result)).toBe(`a b||x=ä|${directory}|/root|root|C.UTF-8|0 1 2 3 `);
  expect(result).toMatchObject({ code: 0, signal: null, timedOut: false });
  expect(result.durationUs).toBeGreaterThan(0);
});

test("runs the shell as bash, separates the streams, and returns the program's exit code", async () => {
  const { client } = await startGuest();
  const result = await run(client, { shell: "echo out; echo err >&2; [[ 1 == 1 ]] && exit 3" });
  expect(text(result)).toBe("out\n");
  expect(result.stderr.toString()).toBe("err\n");
  expect(result.code).toBe(3);
});

test("reports why a start fails: no program, no permission, no directory, no user", async () => {
  const { client, directory } = await startGuest();
  const file = join(directory, "plain");
  writeFileSync(file, "no program", { mode: 0o644 });
  const spawn = (spec: Omit<SpawnSpec, "onDisconnect">) => run(client, spec);
  await expect(spawn({ argv: ["no-such-program"] })).rejects.toMatchObject({
    kind: "exec_failed",
    message: "no-such-program: No such file or directory",
  });
  await expect(spawn({ argv: [file] })).rejects.toMatchObject({ kind: "exec_failed" });
  await expect(spawn({ argv: [""] })).rejects.toMatchObject({ kind: "exec_failed" });
  await expect(spawn({ shell: "true", cwd: "/no/such" })).rejects.toMatchObject({ kind: "path_not_found" });
  await expect(spawn({ shell: "true", cwd: file })).rejects.toMatchObject({ kind: "not_directory" });
  await expect(spawn({ shell: "true", user: "nobody-here" })).rejects.toMatchObject({ kind: "exec_failed" });
  await expect(spawn({})).rejects.toMatchObject({ kind: "guest_protocol" });
  expect(text(await run(client, { shell: "echo still here" }))).toBe("still here\n");
});

test("passes input unchanged, and ends it with an end of file", async () => {
  const { client } = await startGuest();
  const bytes = randomBytes(5 * 1024 * 1024 + 17);
  const process = await client.spawn({ argv: ["cat"], onDisconnect: "kill" });
  const result = collect(process);
  await process.writeStdin(bytes);
  process.endStdin();
  expect((await result).stdout.equals(bytes)).toBe(true);
});

test("accepts a process that ends without reading its input", async () => {
  const { client } = await startGuest();
  const process = await client.spawn({ shell: "exit 4", onDisconnect: "kill" });
  const result = collect(process);
  await process.writeStdin(Buffer.alloc(8 * 1024 * 1024));
  process.endStdin();
  expect((await result).code).toBe(4);
});

test("delivers 100 MB of output through a slow reader, without holding them in memory", async () => {
  const guest = await startGuest();
  const process = await guest.client.spawn({
    shell: "head -c 100000000 /dev/zero",
    onDisconnect: "kill",
  });
  const rss = (): number =>
    Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${guest.process.pid}/status`, "utf8"))?.[1]);
  let bytes = 0;
  let chunks = 0;
  let mostKiB = 0;
  for await (const { data } of process.output) {
    bytes += data.length;
    if (++chunks % 100 === 0) await sleep(5);
    mostKiB = Math.max(mostKiB, rss());
  }
  expect(bytes).toBe(100_000_000);
  expect(await process.exit).toMatchObject({ code: 0 });
  expect(mostKiB).toBeLessThan(8 * 1024);
});

test("signals the whole group, even while unread input fills the connection", async () => {
  const { client } = await startGuest();
  const process = await client.spawn({ shell: "sleep 60 & echo up; wait", onDisconnect: "kill" });
  const output = process.output[Symbol.asyncIterator]();
  await output.next();
  const stuck = process.writeStdin(Buffer.alloc(8 * 1024 * 1024));
  process.signal(15);
  expect(await output.next()).toMatchObject({ done: true });
  expect(await process.exit).toMatchObject({ code: null, signal: 15, timedOut: false });
  await stuck;
});

test("kills the group at a timeout and reports it, even while the output is unread", async () => {
  const { client } = await startGuest();
  const quiet = await run(client, { shell: "sleep 60 & echo $!; wait", timeoutMs: 100 });
  expect(quiet).toMatchObject({ signal: 9, timedOut: true });
  await until(() => !isAlive(Number(text(quiet))));
  const loud = await client.spawn({ shell: "echo $$; exec yes", timeoutMs: 100, onDisconnect: "kill" });
  const first = await loud.output[Symbol.asyncIterator]().next();
  const pid = Number.parseInt(String(first.value?.data), 10);
  await until(() => !isAlive(pid));
  expect(await collect(loud)).toMatchObject({ signal: 9, timedOut: true });
});

test("reports the exit while a child keeps the output open, and lets the child write later", async () => {
  const { client, directory } = await startGuest();
  const done = join(directory, "done");
  const shell = `(sleep 0.2; echo late; echo later >&2; touch ${done}) & echo early`;
  const result = await run(client, { shell });
  expect(text(result)).toBe("early\n");
  expect(result.code).toBe(0);
  await until(() => existsSync(done));
});

test("delivers all output of an ended process before its exit", async () => {
  const { client } = await startGuest();
  const result = await run(client, { shell: "head -c 900000 /dev/zero; head -c 900000 /dev/zero >&2" });
  expect(result.stdout).toHaveLength(900_000);
  expect(result.stderr).toHaveLength(900_000);
});

test("kills a process or lets it run on when its connection ends, as requested", async () => {
  const { client, directory } = await startGuest();
  const killed = await client.spawn({ shell: "echo $$; sleep 60", onDisconnect: "kill" });
  const pid = Number.parseInt(String((await killed.output[Symbol.asyncIterator]().next()).value?.data), 10);
  killed.close();
  await expect(killed.exit).rejects.toMatchObject({ kind: "failed" });
  await until(() => !isAlive(pid));
  const done = join(directory, "done");
  const shell = `head -c 20000000 /dev/zero; touch ${done}`;
  const runsOn = await client.spawn({ shell, onDisconnect: "run_on" });
  runsOn.close();
  await until(() => existsSync(done));
});

test("gives twenty concurrent processes their own output", async () => {
  const { client } = await startGuest();
  const numbers = Array.from({ length: 20 }, (_, i) => i);
  const results = await Promise.all(
    numbers.map((i) => run(client, { shell: `echo ${i}; sleep 0.05; exit ${i}` })),
  );
  expect(results.map((result) => [text(result), result.code])).toEqual(numbers.map((i) => [`${i}\n`, i]));
});

// ---- files

test("writes a file with its mode and missing parents, and reads it back", async () => {
  const { client, directory } = await startGuest();
  const path = join(directory, "a/b/ä ö");
  const bytes = randomBytes(3_000_001);
  const written = await client.writeFile(path, bytes, { mode: 0o750, roots: [directory] });
  expect(written).toEqual({ sizeBytes: bytes.length });
  expect(statSync(path).mode & 0o7777).toBe(0o750);
  const { stat, content } = await client.readFile(path);
  expect(stat).toMatchObject({ isDir: false, sizeBytes: bytes.length, mode: 0o750 });
  const read = createHash("sha256");
  for await (const piece of content) read.update(piece as Buffer);
  expect(read.digest("hex")).toBe(createHash("sha256").update(bytes).digest("hex"));
  expect(readdirSync(join(directory, "a/b"))).toEqual(["ä ö"]);
});

test("keeps the old file and leaves no other file when an upload is interrupted", async () => {
  const { client, directory } = await startGuest();
  const path = join(directory, "file");
  writeFileSync(path, "old");
  async function* broken(): AsyncGenerator<Buffer> {
    yield Buffer.alloc(300_000);
    await sleep(20);
    throw new Error("the uploader went away");
  }
  const options = { mode: 0o644, roots: [directory] };
  await expect(client.writeFile(path, broken(), options)).rejects.toThrow("the uploader went away");
  await until(() => readdirSync(directory).every((name) => !name.startsWith(".kontor")));
  expect(readFileSync(path, "utf8")).toBe("old");
});

test("reads an empty file, and a file of /proc without a size, to the end", async () => {
  const { client, directory } = await startGuest();
  const path = join(directory, "empty");
  await client.writeFile(path, Buffer.alloc(0), { mode: 0o644, roots: [directory] });
  expect(await (await client.readFile(path)).content.toArray()).toEqual([]);
  const { content } = await client.readFile("/proc/version");
  expect(Buffer.concat(await content.toArray()).toString()).toContain("Linux");
});

test("returns the matching error code for every refusal of a file call", async () => {
  const { client, directory } = await startGuest();
  const within = { roots: [directory] };
  const file = join(directory, "file");
  writeFileSync(file, "12345");
  mkdirSync(join(directory, "dir"));
  execFileSync("mkfifo", [join(directory, "fifo")]);
  const at = (name: string): string => join(directory, name);
  const cases: [() => Promise<unknown>, string][] = [
    [() => client.readFile(at("none")), "path_not_found"],
    [() => client.readFile(directory), "is_directory"],
    [() => client.readFile(at("fifo")), "not_permitted"],
    [() => client.readFile("/dev/zero"), "not_permitted"],
    [() => client.readFile(at("file/x")), "not_directory"],
    [() => client.readFile(file, { maxBytes: 4 }), "too_large"],
    [() => client.readFile("relative"), "invalid_path"],
    [() => client.readFile("/a\0b"), "invalid_path"],
    [() => client.readFile(at("x".repeat(256))), "invalid_path"],
    [() => client.list(at("none")), "path_not_found"],
    [() => client.list(file), "not_directory"],
    [() => client.writeFile(at("dir"), Buffer.alloc(1), { mode: 0o644, ...within }), "is_directory"],
    [() => client.writeFile(at("fifo"), Buffer.alloc(1), { mode: 0o644, ...within }), "not_permitted"],
    [() => client.writeFile(at("file/x"), Buffer.alloc(1), { mode: 0o644, ...within }), "not_directory"],
    [
      () => client.writeFile(`${directory}/none/../x`, Buffer.alloc(1), { mode: 0o644, ...within }),
      "path_not_found",
    ],
    [
      () => client.writeFile("/elsewhere", Buffer.alloc(9_000_000), { mode: 0o644, ...within }),
      "not_permitted",
    ],
    [
      () => client.writeFile(`${directory}-not`, Buffer.alloc(1), { mode: 0o644, ...within }),
      "not_permitted",
    ],
    [
      () => client.writeFile(`${directory}/../x`, Buffer.alloc(1), { mode: 0o644, ...within }),
      "not_permitted",
    ],
    [() => client.writeFile(at("x"), Buffer.alloc(1), { mode: 0o644, roots: [] }), "not_permitted"],
    [() => client.mkdir(at("a/b"), { mode: 0o755, parents: false, ...within }), "path_not_found"],
    [() => client.mkdir(at("dir"), { mode: 0o755, parents: false, ...within }), "exists"],
    [() => client.mkdir(file, { mode: 0o755, parents: true, ...within }), "exists"],
    [() => client.mkdir("/elsewhere", { mode: 0o755, parents: true, ...within }), "not_permitted"],
    [() => client.move(at("none"), at("y"), { overwrite: false, ...within }), "path_not_found"],
    [() => client.move(file, at("dir"), { overwrite: false, ...within }), "exists"],
    [() => client.move(file, at("dir"), { overwrite: true, ...within }), "is_directory"],
    [() => client.move(at("dir"), at("dir/in"), { overwrite: false, ...within }), "invalid_path"],
    [() => client.move(file, "/elsewhere", { overwrite: false, ...within }), "not_permitted"],
    [() => client.move("/etc/hostname", at("y"), { overwrite: false, ...within }), "not_permitted"],
    [() => client.move(directory, at("y"), { overwrite: false, ...within }), "not_permitted"],
    [() => client.remove(at("none"), within), "path_not_found"],
    [() => client.remove(at("dir"), within), "is_directory"],
    [() => client.remove("/etc/hostname", within), "not_permitted"],
  ];
  for (const [call, kind] of cases) await expect(call(), kind).rejects.toMatchObject({ kind });
  expect(readFileSync(file, "utf8")).toBe("12345");
});

test("rejects a change through a symlink out of the roots, and follows one that stays inside", async () => {
  const { client, directory } = await startGuest();
  const [inside, outside] = [join(directory, "in"), join(directory, "out")];
  mkdirSync(inside);
  mkdirSync(outside);
  writeFileSync(join(outside, "secret"), "kept");
  symlinkSync(outside, join(inside, "dir"));
  symlinkSync(join(outside, "secret"), join(inside, "file"));
  symlinkSync(join(outside, "new"), join(inside, "dangling"));
  symlinkSync("loop", join(inside, "loop"));
  symlinkSync("real", join(inside, "link"));
  const options = { mode: 0o644, roots: [inside] };
  const write = (name: string) => client.writeFile(join(inside, name), Buffer.from("new"), options);
  for (const name of ["dir/secret", "file", "dangling", "dir/deep/er"])
    await expect(write(name)).rejects.toMatchObject({ kind: "not_permitted" });
  await expect(write("loop")).rejects.toMatchObject({ kind: "invalid_path" });
  const made = client.mkdir(join(inside, "dir/x"), { ...options, parents: true });
  await expect(made).rejects.toMatchObject({ kind: "not_permitted" });
  await expect(client.remove(join(inside, "dir/secret"), options)).rejects.toMatchObject({
    kind: "not_permitted",
  });
  await write("link");
  expect(readFileSync(join(inside, "real"), "utf8")).toBe("new");
  await client.remove(join(inside, "file"), options);
  expect(readdirSync(outside)).toEqual(["secret"]);
  expect(readFileSync(join(outside, "secret"), "utf8")).toBe("kept");
});

test("resolves two symlinks in a row like the kernel for writes, moves, removals, new directories and watches", async () => {
  const { client, directory } = await startGuest();
  const at = (name: string): string => join(directory, name);
  const options = { mode: 0o644, overwrite: false, parents: true, roots: [directory] };
  mkdirSync(at("persist/releases/v2"), { recursive: true });
  symlinkSync(at("persist/releases"), at("releases"));
  symlinkSync("releases/v2", at("current"));
  writeFileSync(at("persist/releases/v2/app.conf"), "old");
  await client.writeFile(at("current/app.conf"), Buffer.from("new"), options);
  expect(readFileSync(at("persist/releases/v2/app.conf"), "utf8")).toBe("new");
  await client.move(at("current/app.conf"), at("current/moved.conf"), options);
  await client.mkdir(at("current/logs/today"), options);
  const { signal } = new AbortController();
  const changes = await client.watch(at("current"), { recursive: true, signal });
  const first = changes[Symbol.asyncIterator]().next();
  await client.remove(at("current/moved.conf"), options);
  expect((await first).value).toMatchObject({ kind: "deleted", path: at("current/moved.conf") });
  expect(readdirSync(at("persist/releases"), { recursive: true }).map(String).toSorted()).toEqual([
    "v2",
    "v2/logs",
    "v2/logs/today",
  ]);
});

test("accepts names of 255 bytes in every call", async () => {
  const { client, directory } = await startGuest();
  const within = { roots: [directory] };
  const path = join(directory, "n".repeat(255));
  const other = join(directory, "ü".repeat(127));
  await client.writeFile(path, Buffer.from("x"), { mode: 0o644, ...within });
  expect((await client.list(directory)).map((entry) => entry.name)).toContain("n".repeat(255));
  await client.move(path, other, { overwrite: false, ...within });
  expect(await client.stat(other)).toMatchObject({ sizeBytes: 1 });
  await client.remove(other, within);
  expect(await client.stat(other)).toBeUndefined();
});

test("makes, lists and moves directories, also a root itself, and lists the targets of symlinks", async () => {
  const { client, directory } = await startGuest();
  const within = { roots: [directory] };
  await client.mkdir(directory, { mode: 0o755, parents: true, ...within });
  await client.mkdir(join(directory, "a/b"), { mode: 0o700, parents: true, ...within });
  await client.mkdir(join(directory, "a/b"), { mode: 0o755, parents: true, ...within });
  symlinkSync("b", join(directory, "a/link"));
  symlinkSync("nothing", join(directory, "a/dangling"));
  const entries = await client.list(join(directory, "a"));
  const kinds = entries.map((entry) => `${entry.name} ${entry.isDir}`).toSorted();
  expect(kinds).toEqual(["b true", "dangling false", "link true"]);
  expect(entries.find((entry) => entry.name === "b")?.mode).toBe(0o700);
  await client.move(join(directory, "a"), join(directory, "c"), { overwrite: false, ...within });
  expect(await client.stat(join(directory, "c/b"))).toMatchObject({ isDir: true });
});

test("lists a directory of 10,000 entries, and rejects one more as too large", async () => {
  const { client, directory } = await startGuest();
  const many = join(directory, "many");
  mkdirSync(many);
  for (let i = 0; i < 10_000; i++) writeFileSync(join(many, `f${i}`), "");
  expect(await client.list(many)).toHaveLength(10_000);
  writeFileSync(join(many, "last"), "");
  await expect(client.list(many)).rejects.toMatchObject({ kind: "too_large" });
});

test("frees the resources of a reader that stops in the middle, and serves the next one", async () => {
  const { client, directory } = await startGuest();
  const path = join(directory, "big");
  writeFileSync(path, Buffer.alloc(4_000_000, 7));
  for (let i = 0; i < 20; i++) {
    const { content } = await client.readFile(path);
    content.destroy();
  }
  const { content } = await client.readFile(path);
  expect(Buffer.concat(await content.toArray())).toHaveLength(4_000_000);
});

// ---- tunnels

test("forwards bytes in both directions, and a half-close as an end of file", async () => {
  const { client } = await startGuest();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    const parts: Buffer[] = [];
    socket.on("data", (part: Buffer) => parts.push(part));
    socket.on("end", () => socket.end(Buffer.concat([Buffer.from("got "), ...parts])));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const bytes = randomBytes(3_000_000);
  const stream = await client.connect((server.address() as AddressInfo).port);
  stream.end(bytes);
  const answer = Buffer.concat(await stream.toArray());
  expect(answer.equals(Buffer.concat([Buffer.from("got "), bytes]))).toBe(true);
});

test("delivers the greeting of a server, and refuses a port without a listener", async () => {
  const { client } = await startGuest();
  const server = createServer((socket) => socket.end("hello"));
  server.listen(0, "::1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const stream = await client.connect(port);
  expect(Buffer.concat(await stream.toArray()).toString()).toBe("hello");
  stream.destroy();
  server.close();
  await once(server, "close");
  await expect(client.connect(port)).rejects.toMatchObject({ kind: "connection_refused" });
  await expect(client.connect(0)).rejects.toMatchObject({ kind: "guest_protocol" });
});

// ---- background commands

const waitForEnd = async (client: GuestClient, id: string) => {
  for await (const _ of client.followCommand(id, 0));
  return client.getCommand(id);
};

test("runs a background command without a connection, and serves and streams its output", async () => {
  const { client } = await startGuest();
  const started = await client.startCommand({
    id: "c1",
    tag: "t",
    shell: "echo a; sleep 0.1; echo b >&2; exit 5",
  });
  await expect(client.startCommand({ id: "c1", shell: "true" })).rejects.toMatchObject({ kind: "exists" });
  expect(await client.getCommand("c1")).toMatchObject({ status: "running", tag: "t", pid: started.pid });
  const followed: string[] = [];
  for await (const { stream, offset, data } of client.followCommand("c1", 0))
    followed.push(`${stream} ${offset} ${String(data)}`);
  expect(followed).toEqual(["stdout 0 a\n", "stderr 2 b\n"]);
  const { chunks, nextOffset, command } = await client.commandLogs("c1", 1, 2);
  expect(chunks.map(({ offset, data }) => [offset, String(data)])).toEqual([
    [1, "\n"],
    [2, "b"],
  ]);
  expect(nextOffset).toBe(3);
  expect(command).toMatchObject({
    status: "exited",
    exitCode: 5,
    outputBytes: 4,
    droppedBytes: 0,
    text: expect.any(String),
  });
  expect((await client.listCommands()).map(({ id }) => id)).toEqual(["c1"]);
  await expect(client.getCommand("none")).rejects.toMatchObject({ kind: "not_found" });
});

test("drops the oldest output past 16 MiB, and counts the dropped bytes in the offsets", async () => {
  const { client } = await startGuest();
  await client.startCommand({ id: "big", shell: "seq -f %015.0f 0 1999999" });
  const { outputBytes, droppedBytes } = await waitForEnd(client, "big");
  expect(outputBytes).toBe(32_000_000);
  expect(droppedBytes).toBeGreaterThan(32_000_000 - 16 * 1024 * 1024);
  const { chunks } = await client.commandLogs("big", 0, 1000);
  expect(chunks[0]?.offset).toBe(droppedBytes);
  const line = Math.ceil(droppedBytes / 16);
  const kept = Buffer.concat(chunks.map(({ data }) => data)).subarray(line * 16 - droppedBytes);
  expect(Number(kept.subarray(0, 15))).toBe(line);
  const tail = await client.commandLogs("big", 32_000_000 - 16, 1000);
  expect(Buffer.concat(tail.chunks.map(({ data }) => data)).toString()).toBe("000000001999999\n");
  expect(tail.nextOffset).toBe(32_000_000);
});

test("writes input to a background command until its end, and kills the command with SIGTERM first", async () => {
  const { client } = await startGuest();
  await client.startCommand({ id: "cat", argv: ["cat"] });
  await client.writeCommandStdin("cat", Buffer.from("one "), false);
  await client.writeCommandStdin("cat", Buffer.alloc(600_000, "x"), true);
  expect(await waitForEnd(client, "cat")).toMatchObject({
    status: "exited",
    exitCode: 0,
    outputBytes: 600_004,
  });
  const late = client.writeCommandStdin("cat", Buffer.from("x"), false);
  await expect(late).rejects.toMatchObject({ kind: "not_running" });
  await client.startCommand({ id: "trap", shell: "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait" });
  await client.followCommand("trap", 0).next();
  await client.killCommand("trap");
  expect(await waitForEnd(client, "trap")).toMatchObject({ status: "killed", exitCode: 7 });
  await client.startCommand({ id: "late", shell: "sleep 60", timeoutMs: 50 });
  expect(await waitForEnd(client, "late")).toMatchObject({ signal: 9, timedOut: true });
});

test("keeps only the last hundred finished commands", async () => {
  const { client } = await startGuest();
  for (let i = 0; i < 105; i++) {
    await client.startCommand({ id: `c${i}`, argv: ["true"] });
    await waitForEnd(client, `c${i}`);
  }
  const kept = await client.listCommands();
  expect(kept).toHaveLength(100);
  expect(kept[0]?.id).toBe("c104");
});

// ---- the connection

test("reconnects after the host's socket was removed and made again, with its commands still running", async () => {
  const { client, connections } = await startGuest();
  await client.startCommand({ id: "c", shell: "echo a; sleep 0.3; echo b" });
  await connections.close();
  await expect(client.ping()).rejects.toMatchObject({ kind: "not_running" });
  await sleep(200);
  await connections.listen();
  await client.ping();
  expect(await waitForEnd(client, "c")).toMatchObject({ status: "exited", outputBytes: 4 });
});

test("reports a killed guest as gone, also to waiting callers", async () => {
  const { client, connections, process } = await startGuest();
  const running = await client.spawn({ shell: "read line", onDisconnect: "kill" });
  const gone = once(connections, "gone");
  process.kill("SIGKILL");
  await expect(collect(running)).rejects.toMatchObject({ kind: "machine_died" });
  await expect(client.ping()).rejects.toMatchObject({ kind: "machine_died" });
  await gone;
});

// ---- watching

test("reports lost changes to a slow reader of a watch, and then later changes", async () => {
  const { client, directory } = await startGuest();
  const { signal } = new AbortController();
  const changes = await client.watch(directory, { recursive: false, signal });
  const names = Array.from({ length: 60_000 }, (_, index) => join(directory, `${"n".repeat(100)}${index}`));
  for (const name of names) writeFileSync(name, "");
  await sleep(200);
  const reading = (async () => {
    const kinds = new Map<string, number>();
    for await (const change of changes) {
      kinds.set(change.kind, (kinds.get(change.kind) ?? 0) + 1);
      if ("path" in change && change.path.endsWith("/last")) return kinds;
    }
    throw new Error("it ended");
  })();
  await sleep(200);
  writeFileSync(join(directory, "last"), "");
  const kinds = await reading;
  expect(kinds.get("overflow")).toBeGreaterThan(0);
  expect(kinds.get("created")).toBeLessThan(names.length);
});

test("lists a page of a large directory in byte order of the names", async () => {
  const { client, directory: home } = await startGuest();
  const directory = join(home, "listed");
  mkdirSync(directory);
  const names = Array.from({ length: 10_500 }, (_, index) => `${(index * 7919) % 10_500}`);
  for (const name of names) writeFileSync(join(directory, name), "");
  writeFileSync(join(directory, "é"), "");
  const sorted = [...names, "é"].toSorted((one, other) =>
    Buffer.compare(Buffer.from(one), Buffer.from(other)),
  );
  const found: string[] = [];
  for (let page = await client.list(directory, { limit: 997 }); page.length > 0;) {
    found.push(...page.map(({ name }) => name));
    page = await client.list(directory, { limit: 997, after: found.at(-1) });
  }
  expect(found).toEqual(sorted);
  expect((await client.list(directory, { limit: 10_001 })).length).toBe(10_001);
  await expect(client.list(directory, { limit: 10_002 })).rejects.toMatchObject({ kind: "guest_protocol" });
  await expect(client.list(directory)).rejects.toMatchObject({ kind: "too_large" });
  // The test deletes the directory itself, because a hook has only ten seconds.
  await client.remove(directory, { roots: [home], recursive: true });
});

test("returns owner and link target, and describes the symlink itself when its target is missing", async () => {
  const { client, directory: home } = await startGuest();
  const directory = join(home, "listed");
  mkdirSync(directory);
  writeFileSync(join(directory, "file"), "four");
  symlinkSync("file", join(directory, "good"));
  symlinkSync("nothing", join(directory, "broken"));
  symlinkSync("loop", join(directory, "loop"));
  const owner = { uid: process.getuid?.(), gid: process.getgid?.() };
  expect(await client.stat(join(directory, "file"))).toMatchObject({ ...owner, linkTarget: null });
  expect(await client.stat(join(directory, "good"))).toMatchObject({ sizeBytes: 4, linkTarget: "file" });
  expect(await client.stat(join(directory, "broken"))).toMatchObject({ sizeBytes: 7, linkTarget: "nothing" });
  expect(await client.stat(join(directory, "loop"))).toMatchObject({ linkTarget: "loop" });
  const targets = (await client.list(directory, { limit: 9 })).map(({ name, linkTarget }) => [
    name,
    linkTarget,
  ]);
  expect(Object.fromEntries(targets)).toEqual({ broken: "nothing", file: null, good: "file", loop: "loop" });
});

test("removes a tree without following symlinks, and refuses a tree that is too deep", async () => {
  const { client, directory } = await startGuest();
  const roots = [directory];
  const tree = join(directory, "tree");
  mkdirSync(join(tree, "a/b/c"), { recursive: true });
  mkdirSync(join(directory, "outside"));
  writeFileSync(join(directory, "outside/kept"), "");
  for (let index = 0; index < 500; index += 1) writeFileSync(join(tree, "a/b", `f${index}`), "");
  symlinkSync(join(directory, "outside"), join(tree, "a/link"));
  await expect(client.remove(tree, { roots })).rejects.toMatchObject({ kind: "is_directory" });
  await client.remove(tree, { roots, recursive: true });
  expect(await client.stat(tree)).toBeUndefined();
  expect(existsSync(join(directory, "outside/kept"))).toBe(true);
  await expect(client.remove(directory, { roots, recursive: true })).rejects.toMatchObject({
    kind: "not_permitted",
  });
  mkdirSync(join(directory, `deep${"/d".repeat(300)}`), { recursive: true });
  await expect(client.remove(join(directory, "deep"), { roots, recursive: true })).rejects.toMatchObject({
    kind: "too_large",
  });
});

test("rejects a watch of too many directories, and reports overflow for a tree that grows beyond the limit", async () => {
  const { client, directory } = await startGuest();
  const { signal } = new AbortController();
  for (let index = 0; index < 8100; index += 1)
    mkdirSync(join(directory, "tree", String(index)), { recursive: true });
  const changes = await client.watch(directory, { recursive: true, signal });
  const seen = (async () => {
    for await (const change of changes) if (change.kind === "overflow") return;
  })();
  for (let index = 0; index < 200; index += 1)
    mkdirSync(join(directory, "more", String(index)), { recursive: true });
  await seen;
  await expect(client.watch(directory, { recursive: true, signal })).rejects.toMatchObject({
    kind: "too_large",
  });
});

test("rejects a seventeenth watch until another one ends", async () => {
  const { client, directory } = await startGuest();
  const gone = new AbortController();
  const watch = (signal: AbortSignal) => client.watch(directory, { recursive: false, signal });
  await watch(gone.signal);
  const kept = new AbortController();
  for (let count = 1; count < 16; count += 1) await watch(kept.signal);
  await expect(watch(kept.signal)).rejects.toMatchObject({ kind: "no_capacity" });
  gone.abort();
  await until(() =>
    watch(kept.signal).then(
      () => true,
      () => false,
    ),
  );
  kept.abort();
});
