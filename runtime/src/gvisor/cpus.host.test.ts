/** Tests the number of processors in a real gVisor machine, as programs count them. */
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { execute, machineSpec } from "../conformance.ts";
import type { LinuxDriver } from "../linux/driver.ts";
import { makeDriver } from "../linux/testing/driver.ts";

const MIB = 1024 * 1024;
const host = availableParallelism();

let subject: Awaited<ReturnType<typeof makeDriver>>;
let driver: LinuxDriver;

beforeAll(async () => {
  subject = await makeDriver({ instance: 59 });
  ({ driver } = subject);
});
afterAll(() => subject?.dispose());

async function boot(vcpus: number) {
  const resources = { vcpus, memoryBytes: 256 * MIB, diskBytes: 1024 * MIB, maxProcesses: 200 };
  const spec = machineSpec(subject.image, { resources });
  onTestFinished(() => driver.remove(spec.id));
  await driver.create(spec);
  return spec;
}

const COUNTS = [
  "nproc",
  "nproc --all",
  "getconf _NPROCESSORS_ONLN",
  "getconf _NPROCESSORS_CONF",
  "grep -c ^processor /proc/cpuinfo",
  "grep -c '^cpu[0-9]' /proc/stat",
];

async function readProcessorCounts(id: string): Promise<number[]> {
  const { stdout } = await execute(driver, id, COUNTS.join("; "));
  return stdout.toString().trim().split("\n").map(Number);
}

const each = (count: number) => COUNTS.map(() => Math.min(count, host));

test("shows programs the machine's number of processors, by every method of counting", async () => {
  for (const vcpus of [0.25, 1, 2]) {
    const { id } = await boot(vcpus);
    expect(await readProcessorCounts(id), String(vcpus)).toEqual(each(Math.ceil(vcpus)));
  }
});

test("shows the new number of processors after a change of size and after a restore, also to users other than root", async () => {
  const spec = await boot(1);
  await driver.setResources(spec.id, { ...spec.resources, vcpus: 2 });
  expect(await readProcessorCounts(spec.id)).toEqual(each(2));
  await driver.setResources(spec.id, spec.resources);
  expect(await readProcessorCounts(spec.id)).toEqual(each(1));
  const nobody = await execute(driver, spec.id, { shell: "nproc; head -1 /proc/cpuinfo", user: "nobody" });
  expect(nobody.stdout.toString()).toMatch(/^1\nprocessor\s*: 0\n$/);
  const paused = join(subject.stateDir, "paused");
  await driver.checkpoint(spec.id, paused);
  await driver.remove(spec.id);
  const larger = { ...spec, resources: { ...spec.resources, vcpus: 2 } };
  await driver.restore(larger, paused);
  expect(await readProcessorCounts(spec.id)).toEqual(each(2));
  await driver.setResources(spec.id, spec.resources);
  expect(await readProcessorCounts(spec.id)).toEqual(each(1));
});
