/** An installation is backed up while it runs, and goes on from the backup elsewhere. */
import { type ChildProcess, spawn } from "node:child_process";
import {
  chmodSync,
  closeSync,
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
import { Server, startServer } from "../server.ts";

const main = join(import.meta.dirname, "../../cli/src/main.ts");
const place = mkdtempSync("/var/tmp/kontor-installation-");
// mkdtemp makes 0700, which PostgreSQL's account could not pass through.
chmodSync(place, 0o711);
const archive = join(place, "kontor.tar");
const elsewhere = join(place, "elsewhere");
const commandTimeoutMs = 60_000;
const children: ChildProcess[] = [];
let server: Server;
let restored: Server | undefined;

beforeAll(async () => {
  const env = { KONTOR_RUNTIME: "fake", KONTOR_ALLOW_FAKE_RUNTIME: "1", KONTOR_POOL_SIZE: "0" };
  server = await startServer(env, []);
}, 60_000);
afterAll(async () => {
  for (const { pid } of children) kill(pid);
  await restored?.destroy();
  await server?.destroy();
  rmSync(place, { recursive: true, force: true });
}, 60_000);

/** Runs the command in a group of its own, with its output in a file; kills the group at the deadline. */
async function kontor(...args: string[]): Promise<{ code: number; output: string }> {
  const file = join(place, `output-${children.length}`);
  const out = openSync(file, "w");
  const child = spawn(process.execPath, [main, ...args], {
    detached: true,
    stdio: ["ignore", out, out],
    env: { PATH: process.env["PATH"], HOME: "/root", ...runtime },
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

const runtime = { KONTOR_RUNTIME: "fake", KONTOR_ALLOW_FAKE_RUNTIME: "1" };

function kill(pid: number | undefined): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It has ended.
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

test("refuses a target below the data directory", async () => {
  const { code, output } = await kontor("backup", join(server.dataDir, "x.tar"), "--data", server.dataDir);
  expect(code).toBe(1);
  expect(output).toContain("which is to be copied");
});

test("refuses to restore over an installation, and leaves it as it was", async () => {
  const { code, output } = await kontor("restore", archive, "--data", server.dataDir);
  expect(code).toBe(1);
  expect(output).toContain("is not empty");
  expect((await server.api("GET", "/api/v1/projects")).status).toBe(200);
});

test("refuses a damaged backup, and leaves the directory empty", async () => {
  const bytes = readFileSync(archive);
  // The first member's content begins after its header.
  bytes[2000] = bytes[2000]! ^ 0xff;
  const damaged = join(place, "damaged.tar");
  writeFileSync(damaged, bytes);
  const { code, output } = await kontor("restore", damaged, "--data", elsewhere);
  expect(code, output).toBe(1);
  expect(output).toContain("damaged");
  expect(readdirSync(elsewhere)).toEqual([]);
});

test("goes on from the backup in another data directory", async () => {
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

test("does not start a server in a directory whose restore did not finish", async () => {
  await restored?.stop();
  writeFileSync(join(elsewhere, "restore-unfinished"), "");
  await expect(restored?.start()).rejects.toThrow("a restore that did not finish");
  rmSync(join(elsewhere, "restore-unfinished"));
});
