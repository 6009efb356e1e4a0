import { createHash } from "node:crypto";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, test } from "vitest";
import type { GuestProcess, SpawnSpec } from "../driver.ts";
import type { GuestClient } from "./client.ts";
import { buildGuest, startIsolatedGuest, until } from "./testing/guest-under-test.ts";

beforeAll(buildGuest);

async function run(client: GuestClient, shell: string, spec: Partial<SpawnSpec> = {}): Promise<string> {
  const process = await client.spawn({ shell, onDisconnect: "kill", ...spec });
  let output = "";
  for await (const { data } of process.output) output += String(data);
  await process.exit;
  return output.trim();
}

/** Names of the processes in the guest's own pid namespace. */
async function processes(client: GuestClient): Promise<string[]> {
  return (await run(client, "for f in /proc/[0-9]*/comm; do read -r name < $f && echo $name; done")).split(
    "\n",
  );
}

test("adopts and reaps orphans as PID 1", async () => {
  const { client } = await startIsolatedGuest();
  expect(await run(client, "cat /proc/1/comm")).toBe("kontor-guest");
  await run(client, "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1; exit 3' >/dev/null 2>&1 &); done");
  await until(async () => {
    const zombies = await run(client, "grep -l '^State:.Z' /proc/[0-9]*/status");
    return zombies === "" && !(await processes(client)).includes("sleep");
  });
});

test("kills a child of the group at a timeout and at a disconnect, and leaves no process", async () => {
  const { client } = await startIsolatedGuest();
  const bare = (await processes(client)).toSorted();
  await run(client, "sleep 60 & sleep 60", { timeoutMs: 50 });
  const process = await client.spawn({ shell: "sleep 60 & echo up; sleep 60", onDisconnect: "kill" });
  await process.output[Symbol.asyncIterator]().next();
  process.close();
  await until(async () => !(await processes(client)).includes("sleep"));
  expect((await processes(client)).toSorted()).toEqual(bare);
});

test("ends the machine on SIGTERM", async () => {
  const guest = await startIsolatedGuest();
  const ended = new Promise((resolve) => guest.process.once("exit", resolve));
  await run(guest.client, "kill -TERM 1").catch(() => {});
  await ended;
});

test("sets the machine's name and base environment, and sets them again on a second request", async () => {
  const { client } = await startIsolatedGuest();
  await client.configure({ hostname: "first", env: { A: "1", B: "2" } });
  await client.configure({ hostname: "second", env: { B: "base", PATH: "/usr/bin:/bin", HOME: "/tmp" } });
  expect(await run(client, "hostname; cat /etc/hostname; getent hosts second")).toBe(
    "second\nsecond\n127.0.1.1       second",
  );
  expect(await run(client, 'grep -c "this machine" /etc/hosts')).toBe("1");
  expect(await run(client, 'echo "$A|$B|$C|$HOME|$PATH"', { env: { C: "own" } })).toBe(
    "|base|own|/tmp|/usr/bin:/bin",
  );
  expect(await run(client, 'echo "$B"', { env: { B: "own" } })).toBe("own");
  const bad = client.configure({ hostname: "no name", env: {} });
  await expect(bad).rejects.toMatchObject({ kind: "guest_protocol" });
});

test("accepts a user as name or number, with groups, home and shell, also an unknown number", async () => {
  const { client } = await startIsolatedGuest();
  await run(
    client,
    "echo 'dev:x:1234:1235::/home/dev:/bin/dash' >> /etc/passwd; echo 'extra:x:77:root,dev' >> /etc/group",
  );
  const who = 'echo "$(id -u) $(id -g) $(id -G) $HOME $USER $SHELL"';
  expect(await run(client, who, { user: "dev", cwd: "/" })).toBe("1234 1235 1235 77 /home/dev dev /bin/dash");
  expect(await run(client, who, { user: "1234", cwd: "/" })).toBe(
    "1234 1235 1235 77 /home/dev dev /bin/dash",
  );
  expect(await run(client, who, { user: "4000", cwd: "/" })).toBe("4000 4000 4000 / 4000 /bin/sh");
  await run(client, "sed -i s:/home/dev:/home/moved: /etc/passwd");
  expect(await run(client, "echo $HOME", { user: "dev", cwd: "/" })).toBe("/home/moved");
  const capabilities = await run(client, "grep ^CapEff /proc/self/status", { user: "dev", cwd: "/" });
  expect(capabilities).toMatch(/^CapEff:\s+0+$/);
});

test("reports the limit of processes, and starts a process after another one has ended", async () => {
  const { client } = await startIsolatedGuest(["prlimit", "--nproc=2"]);
  const argv = ["sleep", "60"];
  const held: GuestProcess[] = [];
  let refused: unknown;
  for (let i = 0; i < 5 && !refused; i++)
    await client.spawn({ argv, user: "4321", cwd: "/", onDisconnect: "kill" }).then(
      (process) => held.push(process),
      (error: unknown) => (refused = error),
    );
  expect(refused).toMatchObject({ kind: "too_many_processes" });
  expect(held.length).toBeGreaterThan(0);
  for (const process of held) process.close();
  await until(
    async () => (await run(client, "echo ok", { user: "4321", cwd: "/" }).catch(() => "")) === "ok",
  );
});

test("reports a full disk, keeps the old file, and leaves no part of the new file", async () => {
  const { client, directory } = await startIsolatedGuest();
  const small = join(directory, "small");
  const options = { mode: 0o644, roots: [small] };
  await client.writeFile(join(small, "old"), Buffer.from("old"), options);
  const write = client.writeFile(join(small, "old"), Buffer.alloc(8 * 1024 * 1024), options);
  await expect(write).rejects.toMatchObject({ kind: "disk_full" });
  expect(await run(client, `ls -A ${small}; cat ${small}/old`)).toBe("old\nold");
});

test("moves a file between two mounts, and rejects a directory", async () => {
  const { client, directory } = await startIsolatedGuest();
  const options = { overwrite: false, roots: [directory] };
  const bytes = Buffer.alloc(500_000, "k");
  writeFileSync(join(directory, "file"), bytes, { mode: 0o750 });
  await client.move(join(directory, "file"), join(directory, "small/file"), options);
  expect(existsSync(join(directory, "file"))).toBe(false);
  const sum = createHash("sha256").update(bytes).digest("hex");
  expect(await run(client, `sha256sum < ${directory}/small/file; stat -c %a ${directory}/small/file`)).toBe(
    `${sum}  -\n750`,
  );
  writeFileSync(join(directory, "file"), "other");
  const again = client.move(join(directory, "file"), join(directory, "small/file"), options);
  await expect(again).rejects.toMatchObject({ kind: "exists" });
  await client.mkdir(join(directory, "dir"), { mode: 0o755, parents: false, roots: [directory] });
  const dir = client.move(join(directory, "dir"), join(directory, "small/dir"), options);
  await expect(dir).rejects.toMatchObject({ kind: "failed" });
});

/** The host's directories below a separate root, which has a volume at /persist. */
const WITH_VOLUME = `
  mount -t tmpfs none /mnt
  for at in /*; do
    if [ -L $at ]; then cp -d $at /mnt/; elif [ -d $at -a $at != /mnt ]; then mkdir /mnt$at; mount --rbind $at /mnt$at; fi
  done
  mkdir /mnt/persist
  exec chroot /mnt "$@"`;

test("names the obstacles to a checkpoint: a deleted file on the volume, a connection out of the machine", async () => {
  const { client } = await startIsolatedGuest(["sh", "-e", "-c", WITH_VOLUME, "sh"]);
  expect(await client.checkpointBlockers()).toEqual([]);
  const shell = "exec 3> /persist/log; rm /persist/log; echo up; read line";
  const holder = await client.spawn({ shell, onDisconnect: "kill" });
  await holder.output[Symbol.asyncIterator]().next();
  const path = "/persist/log (deleted)";
  expect(await client.checkpointBlockers()).toEqual([
    { pid: holder.pid, comm: "bash", reason: "deleted_file", path },
  ]);
  holder.close();
  await until(async () => (await client.checkpointBlockers()).length === 0);
  await run(client, "ip address add 198.51.100.1/24 dev lo");
  const connectToSelf = `
    const { createServer, connect } = require("node:net");
    const server = createServer(() => console.log("up"));
    server.listen(0, () => connect(server.address().port, process.argv[1]));`;
  for (const [address, count] of [
    ["127.0.0.1", 0],
    ["::1", 0],
    ["198.51.100.1", 2],
  ] as const) {
    const argv = [process.execPath, "-e", connectToSelf, address];
    const connected = await client.spawn({ argv, onDisconnect: "kill" });
    await connected.output[Symbol.asyncIterator]().next();
    const blockers = await client.checkpointBlockers();
    expect(
      blockers.map(({ reason }) => reason),
      address,
    ).toEqual(Array(count).fill("tcp_connection"));
    connected.close();
  }
});

test("runs five hundred streams at once, and rejects a stream beyond the limit as busy", async () => {
  const { client } = await startIsolatedGuest(["prlimit", "--nofile=1024:4096"]);
  expect(await run(client, "ulimit -n")).toBe("1024");
  await client.startCommand({ id: "c0", argv: ["sleep", "60"] });
  const processes = await Promise.all(
    Array.from({ length: 512 }, () => client.spawn({ argv: ["sleep", "60"], onDisconnect: "kill" })),
  );
  await expect(client.ping()).rejects.toMatchObject({ kind: "no_capacity" });
  for (const process of processes) process.close();
  await until(async () => (await client.ping().catch(() => "busy")) === undefined);
  await until(async () => (await run(client, "ls -d /proc/[0-9]* | wc -l").catch(() => "")) < "9");
});
