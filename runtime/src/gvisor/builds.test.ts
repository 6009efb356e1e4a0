import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { RunscBuilds } from "./builds.ts";

function makeDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "kontor-builds-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Makes a program that prints this version, with `more` appended to its script. */
function makeProgram(path: string, version: string, more = ""): string {
  writeFileSync(path, `#!/bin/sh\necho 'runsc version ${version}'\necho 'spec: 1.0.2-dev'${more}\n`, {
    mode: 0o755,
  });
  return path;
}

const versionOf = (program: string) => execFileSync(program, ["--version"]).toString().split("\n")[0];

test("keeps an older runsc beside a newer runsc that replaced it at its path", async () => {
  const directory = makeDirectory();
  const program = makeProgram(join(directory, "runsc"), "0.0~20240729.0");
  const first = new RunscBuilds(join(directory, "kept"), program);
  await first.open();
  expect(first.current).toBe("0.0~20240729.0");
  makeProgram(program, "release-20260928.0");
  const second = new RunscBuilds(join(directory, "kept"), program);
  await second.open();
  expect(second.current).toBe("release-20260928.0");
  expect(second.all.toSorted()).toEqual(["0.0~20240729.0", "release-20260928.0"]);
  expect(versionOf(second.path("0.0~20240729.0"))).toBe("runsc version 0.0~20240729.0");
  expect(versionOf(second.path())).toBe("runsc version release-20260928.0");
});

test("prunes every build except the current one and the needed ones", async () => {
  const directory = makeDirectory();
  const kept = join(directory, "kept");
  let builds = new RunscBuilds(kept, "none");
  for (const version of ["1", "2", "3"]) {
    builds = new RunscBuilds(kept, makeProgram(join(directory, "runsc"), version));
    await builds.open();
  }
  await builds.prune(new Set(["1"]));
  expect(readdirSync(kept).toSorted()).toEqual(["1", "3"]);
  expect([builds.has("1"), builds.has("2"), builds.has("3")]).toEqual([true, false, true]);
});

test("replaces its copy of a build that was rebuilt under the same version", async () => {
  const directory = makeDirectory();
  const program = makeProgram(join(directory, "runsc"), "1");
  await new RunscBuilds(join(directory, "kept"), program).open();
  makeProgram(program, "1", "\necho rebuilt");
  const builds = new RunscBuilds(join(directory, "kept"), program);
  await builds.open();
  expect(execFileSync(builds.path(), { encoding: "utf8" })).toContain("rebuilt");
});

test("refuses a program that is missing or prints no version", async () => {
  const directory = makeDirectory();
  const open = (program: string) => new RunscBuilds(join(directory, "kept"), program).open();
  await expect(open(join(directory, "none"))).rejects.toMatchObject({ kind: "host_unsupported" });
  await expect(open(makeProgram(join(directory, "runsc"), "../escape"))).rejects.toMatchObject({
    kind: "host_unsupported",
    message: expect.stringContaining("prints no version"),
  });
});
