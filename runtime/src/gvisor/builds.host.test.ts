/** Two versions of runsc on one host: the installed one, and a program that runs it under another version. */
import { readFileSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { execute, failureKind, machineId, machineSpec } from "../conformance.ts";
import { run } from "../exec.ts";
import { makeDriver } from "../linux/testing/driver.ts";
import { RunscBuilds } from "./builds.ts";

test("restores and checkpoints with the runsc that ran a machine, after a newer one took its place", async () => {
  const directory = await mkdtemp(join(tmpdir(), "kontor-builds-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const [older, calls] = [join(directory, "runsc"), join(directory, "calls")];
  writeFileSync(
    older,
    `#!/bin/sh
[ "$1" = --version ] && echo "runsc version test-older" && exit
echo "$@" >> ${calls}
exec runsc "$@"
`,
    { mode: 0o755 },
  );
  const subject = await makeDriver({ runsc: older });
  onTestFinished(() => subject.dispose());
  let { driver } = subject;
  const [paused, running] = [machineSpec(subject.image), machineSpec(subject.image)];
  for (const spec of [paused, running]) await driver.create(spec);
  const place = join(subject.stateDir, "paused");
  expect((await driver.checkpoint(paused.id, place)).runtimeBuild).toBe("test-older");
  await driver.remove(paused.id);
  await driver.close();
  // Removes the older package, so that another version is installed.
  await rm(older);
  subject.options.runsc = "runsc";
  driver = await subject.again();

  const { runtimeBuild, runtimeBuilds } = await driver.facts();
  expect(runtimeBuild).not.toBe("test-older");
  expect(runtimeBuilds.toSorted()).toEqual([runtimeBuild, "test-older"].toSorted());
  await driver.pruneRuntimes([]);
  expect((await driver.facts()).runtimeBuilds).toContain("test-older");

  writeFileSync(calls, "");
  const fresh = machineSpec(subject.image);
  await driver.create(fresh);
  expect(readFileSync(calls, "utf8")).toBe("");
  const restored = { ...paused, id: machineId() };
  await driver.restore(restored, place);
  expect((await execute(driver, restored.id, "echo alive")).stdout.toString()).toBe("alive\n");
  expect(readFileSync(calls, "utf8")).toMatch(/ restore .*/);
  const later = await driver.checkpoint(running.id, join(subject.stateDir, "later"));
  expect(later.runtimeBuild).toBe("test-older");
  expect(readFileSync(calls, "utf8")).toMatch(/ checkpoint .*/);

  for (const { id } of [restored, running]) await driver.remove(id);
  await driver.pruneRuntimes(["test-older"]);
  expect((await driver.facts()).runtimeBuilds).toContain("test-older");
  await driver.pruneRuntimes([]);
  expect((await driver.facts()).runtimeBuilds).toEqual([runtimeBuild]);
  expect(await failureKind(driver.restore({ ...paused, id: machineId() }, place))).toBe("not_restorable");
});

test("starts runsc from its original path when the data directory is mounted noexec", async () => {
  const directory = await mkdtemp(join(tmpdir(), "kontor-builds-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  await run(["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "none", directory]);
  onTestFinished(async () => void (await run(["umount", directory])));
  const builds = new RunscBuilds(join(directory, "kept"), "runsc");
  await builds.open();
  expect(builds.path()).not.toContain(directory);
  expect((await run([builds.path(), "--version"])).stdout).toContain(`runsc version ${builds.current}\n`);
});
