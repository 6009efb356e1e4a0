/** Backs up a running installation, and restores it into another data directory. */
import { type ChildProcess, spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run } from "@kontor/runtime/exec.ts";
import { instanceOf, traces } from "../support/host-state.ts";
import { Server, startServer } from "../support/server.ts";

const main = join(import.meta.dirname, "../../cli/src/main.ts");
const place = mkdtempSync("/var/tmp/kontor-installation-");
// PostgreSQL's account cannot enter the mode 0700 of mkdtemp.
chmodSync(place, 0o711);
const archive = join(place, "kontor.tar");
const elsewhere = join(place, "elsewhere");
const commandTimeoutMs = 60_000;
const children: ChildProcess[] = [];
let server: Server;
let restored: Server | undefined;
let real: Server | undefined;

beforeAll(async () => {
  const env = { KONTOR_RUNTIME: "fake", KONTOR_ALLOW_FAKE_RUNTIME: "1", KONTOR_POOL_SIZE: "0" };
  server = await startServer(env, []);
}, 60_000);
afterAll(async () => {
  for (const { pid } of children) kill(pid);
  await real?.destroy();
  await restored?.destroy();
  await server?.destroy();
  rmSync(place, { recursive: true, force: true });
}, 60_000);

/** Runs the command in its own process group, with its output in a file. Kills the group at the deadline. */
async function kontor(...args: string[]): Promise<{ code: number; output: string }> {
  const file = join(place, `output-${children.length}`);
  const out = openSync(file, "w");
  const child = spawn(process.execPath, [main, ...args], {
    detached: true,
    stdio: ["ignore", out, out],
    // The environment has no settings of the test's servers, because the command reads the settings of the running
    // server.
    env: { PATH: process.env["PATH"], HOME: "/root" },
  });
  closeSync(out);
  children.push(child);
  const deadline = setTimeout(() => kill(child.pid), commandTimeoutMs);
  const code = await new Promise<number>((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (status) => resolve(status ?? 137));
  });
  clearTimeout(deadline);
  return { code, output: readFileSync(file, "utf8") };
}

function kill(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // The process has already ended.
  }
}

test("backs up a running installation into one file", async () => {
  writeFileSync(join(server.dataDir, "kontor.toml"), "activity_retention_days = 77\n");
  const made = await server.api("POST", "/api/v1/projects", { body: { name: "kept" } });
  expect(made.status, JSON.stringify(made.body)).toBeLessThan(300);
  const { code, output } = await kontor("backup", archive, "--data", server.dataDir);
  expect(code, output).toBe(0);
  expect(output).toContain(archive);
  expect(statSync(archive).mode & 0o777).toBe(0o600);
  expect(readdirSync(place).filter((name) => name.startsWith(".kontor-backup"))).toEqual([]);
});

test("writes a backup and exits with code 1 when a volume's data is missing on the disk", async () => {
  const made = await server.api("POST", "/v1/sandboxes/volumes", { body: { name: "unmounted", size_gb: 1 } });
  expect(made.status, JSON.stringify(made.body)).toBe(201);
  await server.sql("update sandbox_volumes set is_made = true where id = $1", [made.body.id]);
  const lacking = join(place, "lacking.tar");
  const { code, output } = await kontor("backup", lacking, "--data", server.dataDir);
  await server.sql("delete from sandbox_volumes where id = $1", [made.body.id]);
  expect(code, output).toBe(1);
  expect(output).toContain("The backup lacks 1 items");
  expect(output).toContain(`volume ${made.body.id}: its data is not in the volume directory`);
  expect(existsSync(lacking)).toBe(true);
});

test("refuses to write a backup below the data directory", async () => {
  const { code, output } = await kontor("backup", join(server.dataDir, "x.tar"), "--data", server.dataDir);
  expect(code).toBe(1);
  expect(output).toContain("which is to be copied");
});

test("refuses to restore a backup over an installation, and does not change the installation", async () => {
  const { code, output } = await kontor("restore", archive, "--data", server.dataDir);
  expect(code).toBe(1);
  expect(output).toContain("is not empty");
  expect((await server.api("GET", "/api/v1/projects")).status).toBe(200);
});

test("refuses a damaged backup, and leaves the target directory empty", async () => {
  const bytes = readFileSync(archive);
  // The content of the first file starts after its header.
  bytes[2000] = bytes[2000]! ^ 0xff;
  const damaged = join(place, "damaged.tar");
  writeFileSync(damaged, bytes);
  const { code, output } = await kontor("restore", damaged, "--data", elsewhere);
  expect(code, output).toBe(1);
  expect(output).toContain("damaged");
  expect(readdirSync(elsewhere)).toEqual([]);
});

test("starts in another data directory that was restored from the backup", async () => {
  const before = await server.api("GET", "/api/v1/projects");
  const { code, output } = await kontor("restore", archive, "--data", elsewhere);
  expect(code, output).toBe(0);
  await server.stop();
  restored = new Server({ ...server.description, dataDir: elsewhere });
  await restored.start();
  const after = await restored.api("GET", "/api/v1/projects");
  expect(after.status).toBe(200);
  expect(after.body).toEqual(before.body);
  expect(readFileSync(join(elsewhere, "kontor.toml"), "utf8")).toContain("77");
  for (const name of ["secrets.key", "host-id"]) {
    expect(readFileSync(join(elsewhere, name))).toEqual(readFileSync(join(server.dataDir, name)));
  }
}, 90_000);

test("does not start a server in a directory whose restore did not complete", async () => {
  await restored?.stop();
  writeFileSync(join(elsewhere, "restore-unfinished"), "");
  await expect(restored?.start()).rejects.toThrow("a restore that did not finish");
  rmSync(join(elsewhere, "restore-unfinished"));
});

test("refuses to uninstall a running server without --yes, and uninstalls it with --yes", async () => {
  await restored?.start();
  const refused = await kontor("uninstall", "--keep-settings", "--data", elsewhere);
  expect([refused.code, refused.output]).toEqual([1, expect.stringContaining("A server runs on")]);
  expect(restored?.pid).toBeDefined();
  const removed = await kontor("uninstall", "--yes", "--keep-settings", "--data", elsewhere);
  expect(removed.code, removed.output).toBe(0);
  expect(existsSync(elsewhere)).toBe(false);
  // A backup outside the data directory stays.
  expect(existsSync(archive)).toBe(true);
}, 90_000);

test("an uninstall leaves nothing on the host, even with a running machine and a volume", async () => {
  real = await startServer({ KONTOR_POOL_SIZE: "1" });
  const { dataDir } = real;
  const volume = await real.api("POST", "/v1/sandboxes/volumes", { body: { name: "data", size_gb: 1 } });
  expect(volume.status, JSON.stringify(volume.body)).toBe(201);
  const body = { template: "debian-12", network: "open", timeout_seconds: 1800, volume: "data" };
  const sandbox = await real.api("POST", "/v1/sandboxes", { body });
  expect(sandbox.status, JSON.stringify(sandbox.body)).toBe(201);
  const instance = instanceOf(dataDir);
  const before = await traces(dataDir);
  for (const kind of ["processes", "mounts", "namespaces", "links", "groups", "loops"]) {
    expect(before[kind], kind).not.toEqual([]);
  }

  const { code, output } = await kontor("uninstall", "--yes", "--keep-settings", "--data", dataDir);
  expect(code, output).toBe(0);
  expect(existsSync(dataDir)).toBe(false);
  expect(existsSync(`/run/kontor/${instance}`)).toBe(false);
  expect(instanceOf(dataDir)).toBeUndefined();
  expect(await namesOnHost(instance)).toEqual([]);
}, 180_000);

/**
 * Returns the names of an instance on the host: namespaces, interfaces, addresses, nft tables, groups, mounts and
 * processes.
 */
async function namesOnHost(instance: number | undefined): Promise<string[]> {
  const read = async (argv: readonly string[]) => (await run(argv)).stdout;
  const text = [
    await read(["ip", "netns", "list"]),
    await read(["ip", "-oneline", "addr"]),
    await read(["nft", "list", "tables"]),
    await read(["find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", `kontor${instance}`]),
    readFileSync("/proc/self/mountinfo", "utf8"),
    await read(["ps", "-eo", "args"]),
  ].join("\n");
  const own = new RegExp(
    `\\bkv${instance}-\\d|\\bkontor${instance}$|/run/kontor/${instance}/|\\b100\\.${64 + (instance ?? 0)}\\.255\\.255\\b`,
  );
  return text.split("\n").filter((line) => own.test(line));
}
