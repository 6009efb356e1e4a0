/**
 * The real guest program as a child of a test, in its own directory. Plain: an ordinary process that sees
 * this host. Isolated (root): PID 1 of its own namespaces, so that all its processes end with it.
 */
import { execFileSync, spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished, vi } from "vitest";
import { GuestClient } from "../client.ts";
import { GuestConnections } from "../connections.ts";

const SOURCE = new URL("../../../../guest", import.meta.url).pathname;
const GUEST_BINARY = join(SOURCE, "build/kontor-guest");

/** Builds the guest with make, which does nothing for an up-to-date build. Two concurrent makes both succeed. */
export function buildGuest(): void {
  execFileSync("make", ["-s", "-C", SOURCE], { stdio: "pipe" });
}

/** Returns whether the process is alive. A zombie is not alive: this host reaps the orphans of a plain guest. */
export function isAlive(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

/** Waits for the condition. The deadline is long, because it only ends a test that fails. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  await vi.waitUntil(condition, { timeout: 20_000, interval: 10 });
}

export function makeDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "kontor-guest-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

export interface GuestUnderTest {
  directory: string;
  client: GuestClient;
  connections: GuestConnections;
  process: ChildProcess;
}

/** Starts the guest. `argv` comes before the guest's own argv, as a wrapper. */
async function start(directory: string, argv: string[]): Promise<GuestUnderTest> {
  const connections = new GuestConnections(join(directory, "s.sock"));
  await connections.listen();
  onTestFinished(() => connections.close());
  const [program, ...rest] = [...argv, GUEST_BINARY, connections.path];
  const process = spawn(program as string, rest, { stdio: "inherit", cwd: "/" });
  const ended = new Promise((resolve) => process.once("exit", resolve));
  onTestFinished(async () => {
    process.kill("SIGKILL");
    await ended;
  });
  const client = new GuestClient(connections);
  await client.ping();
  return { directory, client, connections, process };
}

export function startGuest(argv: string[] = []): Promise<GuestUnderTest> {
  return start(makeDirectory(), argv);
}

/**
 * Starts the guest as PID 1 of new pid, mount, uts and network namespaces. /etc is writable (an overlay),
 * `<directory>/small` is a tmpfs of 1 MiB, and the loopback is up.
 */
export function startIsolatedGuest(argv: string[] = []): Promise<GuestUnderTest> {
  const directory = makeDirectory();
  const prepare = [
    "set -e",
    'mkdir "$0/small" "$0/etc" && mount -t tmpfs -o size=1m none "$0/small" && mount -t tmpfs none "$0/etc"',
    'mkdir "$0/etc/upper" "$0/etc/work"',
    'mount -t overlay -o "lowerdir=/etc,upperdir=$0/etc/upper,workdir=$0/etc/work" none /etc',
    "ip link set lo up",
    'exec "$@"',
  ].join("; ");
  const unshare =
    "unshare --pid --fork --kill-child --mount-proc --mount --uts --net --propagation private".split(" ");
  return start(directory, [...unshare, "sh", "-c", prepare, directory, ...argv]);
}
