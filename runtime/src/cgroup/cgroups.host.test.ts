import { spawn, type ChildProcess } from "node:child_process";
import { mkdir, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test } from "vitest";
import { Cgroups } from "./cgroups.ts";

const resources = { vcpus: 1, memoryBytes: 64 * 1024 * 1024, maxProcesses: 10 };
const NAME = "m0000000000000000000";
let cgroups: Cgroups;
const children: ChildProcess[] = [];

beforeEach(async () => {
  cgroups = await Cgroups.detect("kontor63-cgroup-test");
  await cgroups.open();
  await cgroups.create(NAME, resources, "gvisor");
});

afterEach(async () => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  await cgroups.killAll(NAME);
  await cgroups.remove(NAME);
  await cgroups.removeParent();
});

/** Starts a process outside the group, moves it into the group, and then lets it run `script`. */
async function inGroup(script: string): Promise<ChildProcess> {
  const child = spawn("sh", ["-c", `read go; ${script}`], { stdio: ["pipe", "ignore", "ignore"] });
  children.push(child);
  for (const tree of new Set(Object.values(cgroups.layout.trees))) {
    await writeFile(join(tree, cgroups.pathOf(NAME), "cgroup.procs"), String(child.pid));
  }
  child.stdin?.end("go\n");
  return child;
}

test("uses no CPU in a frozen group, and continues after a thaw", async () => {
  await inGroup("while :; do :; done");
  await cgroups.freeze(NAME);
  await cgroups.freeze(NAME);
  expect(await cgroups.isFrozen(NAME)).toBe(true);
  const before = (await cgroups.usage(NAME)).cpuSeconds;
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect((await cgroups.usage(NAME)).cpuSeconds).toBe(before);
  await cgroups.thaw(NAME);
  expect(await cgroups.isFrozen(NAME)).toBe(false);
});

test("kills a frozen group, which is then empty and removable", async () => {
  await inGroup("sleep 60 & sleep 60");
  await cgroups.freeze(NAME);
  await cgroups.killAll(NAME);
  expect(await cgroups.processes(NAME)).toEqual([]);
  await cgroups.remove(NAME);
  await cgroups.remove(NAME);
  expect(await cgroups.list()).toEqual([]);
});

/**
 * Freezes a group in one tree alone, with `child` in it. A process with write access to a cgroup mount can
 * make such a group.
 */
async function freezeIn(group: string, child: ChildProcess): Promise<void> {
  await mkdir(group, { recursive: true });
  await writeFile(join(group, "cgroup.procs"), String(child.pid));
  const [file, value] =
    cgroups.layout.version === "v1" ? ["freezer.state", "FROZEN"] : ["cgroup.freeze", "1"];
  await writeFile(join(group, file), value);
}

test("removes a tree with a frozen process in a group that only the freezer tree has", async () => {
  const child = await inGroup("exec sleep 60");
  const exit = new Promise((resolve) => child.once("exit", (_, signal) => resolve(signal)));
  await freezeIn(join(cgroups.layout.trees.freezer, cgroups.pathOf(NAME), "steps", "z"), child);
  await cgroups.removeTree(NAME);
  expect(await exit).toBe("SIGKILL");
  expect(await cgroups.list()).toEqual([]);
});

test("kills a process that only the freezer tree has below the group", async () => {
  const child = spawn("sleep", ["60"], { stdio: "ignore" });
  children.push(child);
  const exit = new Promise((resolve) => child.once("exit", (_, signal) => resolve(signal)));
  await freezeIn(join(cgroups.layout.trees.freezer, cgroups.pathOf(NAME), "z"), child);
  await cgroups.removeTree(NAME);
  expect(await exit).toBe("SIGKILL");
  expect(await cgroups.list()).toEqual([]);
});

test("sets aside a group that cannot be emptied, and removes it later", async () => {
  // On v2, frozen tasks can be killed too, so no group remains.
  if (cgroups.layout.version === "v2") return;
  const logged: string[] = [];
  const own = await Cgroups.detect("kontor63-cgroup-test", (event) => logged.push(event));
  const child = await inGroup("exec sleep 60");
  const outside = join(own.layout.trees.freezer, "kontor63-cgroup-outside");
  onTestFinished(() => rmdir(outside));
  await freezeIn(outside, child);
  await own.removeTree(NAME);
  expect(logged).toEqual(["leftover_set_aside"]);
  await writeFile(join(outside, "freezer.state"), "THAWED");
  await expect.poll(() => own.list(), { timeout: 60_000 }).toEqual([]);
  expect(logged).toEqual(["leftover_set_aside", "leftover_removed_late"]);
});

test("detects a process that was killed at the memory limit", async () => {
  expect(await cgroups.oomKilled(NAME)).toBe(false);
  const child = await inGroup(`exec ${process.execPath} -e 'Buffer.alloc(200e6, 1)'`);
  await new Promise((resolve) => child.once("exit", resolve));
  expect(await cgroups.oomKilled(NAME)).toBe(true);
});

test("raises and lowers the limits of a group", async () => {
  await cgroups.setLimits(NAME, { ...resources, memoryBytes: 512 * 1024 * 1024 }, "gvisor");
  await expect(cgroups.setLimits(NAME, resources, "gvisor")).resolves.toBeUndefined();
});
