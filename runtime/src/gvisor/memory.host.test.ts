/**
 * Tests the memory of a real gVisor machine. A full memory kills a process or fails an allocation, and never kills the
 * machine.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { execute, machineId, machineSpec } from "../conformance.ts";
import type { RuntimeError } from "../driver.ts";
import type { LinuxDriver } from "../linux/driver.ts";
import { makeDriver } from "../linux/testing/driver.ts";
import { testImage } from "../rootfs/testing/image.ts";

const MIB = 1024 * 1024;

let subject: Awaited<ReturnType<typeof makeDriver>>;
let driver: LinuxDriver;

beforeAll(async () => {
  subject = await makeDriver({ instance: 60 });
  ({ driver } = subject);
});
afterAll(() => subject?.dispose());

async function boot(memoryMib: number, maxProcesses = 200, image = subject.image) {
  const resources = { vcpus: 1, memoryBytes: memoryMib * MIB, diskBytes: 1024 * MIB, maxProcesses };
  const spec = machineSpec(image, { resources });
  onTestFinished(() => driver.remove(spec.id));
  await driver.create(spec);
  return spec;
}

const FILL = "head -c 1G /dev/zero > /dev/shm/full; stat -c %s /dev/shm/full; rm /dev/shm/full";

test("limits /dev/shm to half of the memory, before a pause and after it", async () => {
  const spec = await boot(256);
  const filled = await execute(driver, spec.id, FILL);
  expect(filled.stderr.toString()).toContain("No space left on device");
  expect(filled.stdout.toString()).toBe(`${128 * MIB}\n`);
  const paused = join(subject.stateDir, "paused");
  await driver.checkpoint(spec.id, paused);
  await driver.remove(spec.id);
  await driver.restore(spec, paused);
  expect((await execute(driver, spec.id, FILL)).stdout.toString()).toBe(`${128 * MIB}\n`);
});

test("restores a checkpoint of an older server, whose /dev/shm has no size", async () => {
  const spec = await boot(256);
  const record = join(subject.stateDir, "machines", spec.id, "config.json");
  expect(await readFile(record, "utf8")).toContain(`"size=${128 * MIB}"`);
  const paused = join(subject.stateDir, "older");
  await driver.checkpoint(spec.id, paused);
  await driver.remove(spec.id);
  const manifest = join(paused, "manifest.json");
  const { sharedMemoryBytes, ...older } = JSON.parse(await readFile(manifest, "utf8")) as {
    sharedMemoryBytes: number;
  };
  expect(sharedMemoryBytes).toBe(128 * MIB);
  await writeFile(manifest, JSON.stringify(older));
  const restored = { ...spec, id: machineId() };
  onTestFinished(() => driver.remove(restored.id));
  await driver.restore(restored, paused);
  expect((await execute(driver, restored.id, "echo alive")).stdout.toString()).toBe("alive\n");
});

/**
 * Number of rounds of each case. KONTOR_MEMORY_ROUNDS=50 makes a longer run, and prints the slowest response of each
 * case.
 */
const ROUNDS = Number(process.env["KONTOR_MEMORY_ROUNDS"] ?? 2);
const ROUNDS_TIMEOUT_MS = 60_000 + ROUNDS * 60_000;

/** Runs the command in every round. After each round, checks that the machine runs and executes the next command. */
async function survive(
  spec: Awaited<ReturnType<typeof boot>>,
  command: Parameters<typeof execute>[2],
  check: (ran: Awaited<ReturnType<typeof execute>>) => void,
): Promise<void> {
  let slowestMs = 0;
  for (let round = 0; round < ROUNDS; round += 1) {
    check(await execute(driver, spec.id, command));
    const sentAt = performance.now();
    const after = await execute(driver, spec.id, "echo alive");
    slowestMs = Math.max(slowestMs, performance.now() - sentAt);
    expect(after.stdout.toString()).toBe("alive\n");
    expect(after.exit.outOfMemory).toBe(false);
    expect((await driver.list()).find(({ id }) => id === spec.id)).toMatchObject({ state: "running" });
  }
  if (process.env["KONTOR_MEMORY_ROUNDS"] !== undefined) {
    process.stderr.write(`${ROUNDS} rounds, slowest next command ${Math.round(slowestMs)} ms\n`);
  }
}

test.each([
  ["reads one endless line", "tail /dev/zero", "outOfMemory"],
  ["makes one string of 3 GB", "perl -e '$x = chr(65) x (3 * 1024 ** 3)'", "outOfMemory"],
  ["makes many strings of 1 MB", "perl -e 'push @a, chr(65) x (1024 ** 2) while 1'", "outOfMemory"],
  [
    "allocates in sixteen processes",
    "for i in $(seq 16); do tail /dev/zero & done; wait; exit 9",
    "outOfMemory",
  ],
  ["fills /dev/shm", FILL, "no"],
])(
  "survives a command that %s",
  async (_, shell, end) => {
    const spec = await boot(512);
    await survive(spec, shell, ({ exit }) => expect(exit.outOfMemory).toBe(end === "outOfMemory"));
  },
  ROUNDS_TIMEOUT_MS,
);

test(
  "survives a numpy array that is larger than the memory",
  async () => {
    const { image } = await testImage("code-interpreter");
    const spec = await boot(512, 200, image.id);
    const argv = [
      "python3",
      "-c",
      "import numpy; print('start', flush=True); print(numpy.ones(10 ** 9).sum())",
    ];
    await survive(spec, { argv }, ({ stdout, exit }) => {
      expect(stdout.toString()).toBe("start\n");
      expect(exit.outOfMemory).toBe(true);
    });
  },
  ROUNDS_TIMEOUT_MS,
);

test(
  "survives a fork bomb, and kills the bomb with its command",
  async () => {
    // The process limit of a sandbox.
    const spec = await boot(512, 1024);
    const bomb = { shell: "bomb() { bomb | bomb & }; bomb; sleep 300", timeoutMs: 3_000 };
    await survive(spec, bomb, ({ exit }) => expect(exit.timedOut || exit.outOfMemory).toBe(true));
    // Two processes are left: PID 1, and the shell that counts.
    const left = await execute(driver, spec.id, "cd /proc; set -- [0-9]*; echo $#");
    expect(left.stdout.toString()).toBe("2\n");
  },
  ROUNDS_TIMEOUT_MS,
);

test("kills the largest process, and keeps smaller ones of other commands", async () => {
  const spec = await boot(512);
  const guest = driver.guest(spec.id);
  await guest.startCommand({ id: "small", shell: "perl -e '$x = chr(65) x (50 * 1024 ** 2); sleep 600'" });
  await guest.startCommand({ id: "large", shell: "tail /dev/zero" });
  await expect.poll(async () => (await guest.getCommand("large")).status, { timeout: 60_000 }).toBe("exited");
  expect(await guest.getCommand("large")).toMatchObject({ signal: 9, outOfMemory: true });
  expect(await guest.getCommand("small")).toMatchObject({ status: "running", outOfMemory: false });
});

test("keeps the machine's memory size and limit through a pause", async () => {
  const spec = await boot(512);
  // The contents need almost the whole size, so the restore needs the headroom at once.
  await execute(driver, spec.id, "head -c 250M /dev/urandom > /dev/shm/kept");
  await driver.guest(spec.id).startCommand({
    id: "filled",
    shell: "perl -e '$x = chr(65) x (110 * 1024 ** 2); print 1; $| = 1; print 2; sleep 600'",
  });
  await expect.poll(async () => (await driver.guest(spec.id).getCommand("filled")).outputBytes).toBe(2);
  const paused = join(subject.stateDir, "filled");
  await driver.checkpoint(spec.id, paused);
  await driver.remove(spec.id);
  await driver.restore(spec, paused);
  const seen = await execute(driver, spec.id, "grep MemTotal /proc/meminfo; stat -c %s /dev/shm/kept");
  expect(seen.stdout.toString()).toBe(`MemTotal:         524288 kB\n${250 * MIB}\n`);
  expect((await execute(driver, spec.id, "tail /dev/zero")).exit.outOfMemory).toBe(true);
  expect((await execute(driver, spec.id, "echo alive")).stdout.toString()).toBe("alive\n");
});

test("captures a machine with a fork bomb, or reports the deadline or the full memory", async () => {
  const spec = await boot(512, 1024);
  await execute(driver, spec.id, { argv: ["/bin/sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 3"] });
  const image = { id: `captured-${spec.id}`, name: "bomb" };
  onTestFinished(() => driver.removeImage(image.id));
  const error = await driver.captureImage(spec.id, image, { timeoutMs: 60_000 }).then(
    () => undefined,
    (error: RuntimeError) => error,
  );
  // The bomb takes memory from the capture program too. The error names that cause.
  if (error?.kind === "failed")
    expect(error.message).toMatch(/: (the machine ran out of memory|.* signal 9)$/);
  else expect(error?.kind ?? "none").toMatch(/^(none|timeout)$/);
  expect((await driver.list()).find(({ id }) => id === spec.id)).toMatchObject({ state: "running" });
}, 240_000);
