/**
 * Tests that leftovers of earlier processes in the machines' control groups never stop the start of the
 * driver.
 */
import { spawn } from "node:child_process";
import { mkdir, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { Cgroups } from "../cgroup/cgroups.ts";
import { machineId } from "../conformance.ts";
import { INSTANCE, listLeftovers, makeDriver } from "./testing/driver.ts";

/** Starts a sleeping process in `group` and freezes it. */
async function frozenIn(group: string, freeze: [file: string, value: string]) {
  const child = spawn("sleep", ["600"], { stdio: "ignore" });
  const exit = new Promise((resolve) => child.once("exit", (_, signal) => resolve(signal)));
  onTestFinished(() => void child.kill("SIGKILL"));
  await mkdir(group, { recursive: true });
  await writeFile(join(group, "cgroup.procs"), String(child.pid));
  await writeFile(join(group, freeze[0]), freeze[1]);
  return { pid: String(child.pid), exit };
}

test("opens with a frozen process in a group that only the freezer tree has, and kills it", async () => {
  const subject = await makeDriver();
  onTestFinished(subject.dispose);
  const { layout } = await Cgroups.detect("");
  const group = join(layout.trees.freezer, `kontor${INSTANCE}`, machineId(), "steps", "z");
  const { exit } = await frozenIn(
    group,
    layout.version === "v1" ? ["freezer.state", "FROZEN"] : ["cgroup.freeze", "1"],
  );
  const driver = await subject.again();
  expect(await exit).toBe("SIGKILL");
  expect(await driver.list()).toEqual([]);
  expect(await listLeftovers(subject.stateDir, INSTANCE)).toEqual([]);
});

test("opens while a process cannot be killed, and removes the process's group once the process has ended", async () => {
  const { layout } = await Cgroups.detect("");
  // On v2, frozen tasks can be killed too.
  if (layout.version === "v2") return;
  const logged: string[] = [];
  const subject = await makeDriver({ log: (event) => logged.push(event) });
  onTestFinished(subject.dispose);
  const outside = join(layout.trees.freezer, `kontor${INSTANCE}-outside`);
  const { pid, exit } = await frozenIn(outside, ["freezer.state", "FROZEN"]);
  onTestFinished(async () => {
    await writeFile(join(outside, "freezer.state"), "THAWED");
    await rmdir(outside);
  });
  const group = join(layout.trees.pids, `kontor${INSTANCE}`, machineId());
  await mkdir(group, { recursive: true });
  await writeFile(join(group, "cgroup.procs"), pid);
  await subject.again();
  expect(logged).toContain("leftover_set_aside");
  await writeFile(join(outside, "freezer.state"), "THAWED");
  expect(await exit).toBe("SIGKILL");
  await expect.poll(() => listLeftovers(subject.stateDir, INSTANCE), { timeout: 60_000 }).toEqual([]);
});
