import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run, startGuard } from "../lib/run.ts";
import { copyVolume } from "./volumes.ts";

const directory = mkdtempSync("/var/tmp/kontor-backup-");
const image = path.join(directory, "volume.ext4");
const mounted = path.join(directory, "mounted");
const copied = path.join(directory, "copied");

beforeAll(async () => {
  for (const place of [mounted, copied]) mkdirSync(place);
  await must(["truncate", "--size=64M", image]);
  await must(["mkfs.ext4", "-q", image]);
  await must(["mount", "-o", "loop", image, mounted]);
});
afterAll(async () => {
  await run(["umount", copied], { timeoutMs: 10_000 });
  await run(["umount", mounted], { timeoutMs: 10_000 });
  rmSync(directory, { recursive: true });
});

async function must(argv: readonly [string, ...string[]]): Promise<void> {
  const { code, output } = await run(argv, { timeoutMs: 20_000 });
  if (code !== 0) throw new Error(`${argv.join(" ")}: ${output}`);
}

test("copies a mounted volume completely, and thaws the volume", async () => {
  writeFileSync(path.join(mounted, "kept"), "bytes that nobody synced");
  const copy = path.join(directory, "copy.ext4");
  expect(await copyVolume(image, copy)).toBe("copied");
  // The copy of a frozen filesystem is clean, without a replay of the journal.
  await must(["e2fsck", "-n", "-f", copy]);
  await must(["mount", "-o", "loop,ro,noload", copy, copied]);
  expect(readFileSync(path.join(copied, "kept"), "utf8")).toBe("bytes that nobody synced");
  await must(["touch", path.join(mounted, "written-after")]);
});

test("reports a volume as missing when it is deleted during the backup", async () => {
  expect(await copyVolume(path.join(directory, "gone", "volume.ext4"), path.join(directory, "x"))).toBe(
    "missing",
  );
  expect(existsSync(path.join(directory, "x"))).toBe(false);
});

test("thaws the volume when the backup is killed during the freeze", async () => {
  const program = `
    import { openSync } from "node:fs";
    import { startGuard } from ${JSON.stringify(path.join(import.meta.dirname, "../lib/run.ts"))};
    const guard = startGuard([process.execPath, process.argv[1], "60"], openSync(process.argv[2], "r"));
    if (await guard.frozen) process.kill(process.pid, "SIGKILL");
    process.exit(3);`;
  const argv = [
    process.execPath,
    "--input-type=module-typescript",
    "--eval",
    program,
    path.join(import.meta.dirname, "freeze-guard.ts"),
    mounted,
  ] as const;
  const { code, output } = await run(argv, { timeoutMs: 30_000 });
  expect({ code, output }).toEqual({ code: 137, output: "" });
  // A write to a filesystem that is still frozen would wait forever.
  await must(["touch", path.join(mounted, "written-after-the-kill")]);
});

test("thaws the volume when the guard process is killed during the freeze", async () => {
  const opened = openSync(mounted, "r");
  const guard = startGuard(
    [process.execPath, path.join(import.meta.dirname, "freeze-guard.ts"), "60"],
    opened,
  );
  expect(await guard.frozen).toBe(true);
  for (const pid of childrenWith("freeze-guard.ts")) process.kill(pid, "SIGKILL");
  expect(await guard.thaw()).toBe(false);
  closeSync(opened);
  await must(["touch", path.join(mounted, "written-after-the-guard")]);
});

test(
  "thaws the volume when the guard process is killed at any moment of its start",
  { timeout: 60_000 },
  async () => {
    const opened = openSync(mounted, "r");
    for (let waitMs = 0; waitMs <= 350; waitMs += 50) {
      const guard = startGuard(
        [process.execPath, path.join(import.meta.dirname, "freeze-guard.ts"), "60"],
        opened,
      );
      await delay(waitMs);
      for (const pid of childrenWith("freeze-guard.ts")) process.kill(pid, "SIGKILL");
      await guard.frozen;
      await guard.thaw();
      await must(["touch", path.join(mounted, `written-after-${waitMs}`)]);
    }
    closeSync(opened);
  },
);

test("reports a volume that is mounted in a mount namespace outside the command's view", async () => {
  const other = path.join(directory, "other.ext4");
  await must(["truncate", "--size=8M", other]);
  const attached = await run(["losetup", "--find", "--show", other], { timeoutMs: 10_000 });
  try {
    const copied = await copyVolume(other, path.join(directory, "other-copy.ext4"), { maxLooks: 2 });
    expect(copied).toEqual({ failure: expect.stringContaining("mounted where this command cannot see it") });
  } finally {
    await must(["losetup", "--detach", attached.output.trim()]);
  }
});

/** Returns the children of this process with a word in their command line. */
function childrenWith(word: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return (
          readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(word) &&
          readFileSync(`/proc/${pid}/status`, "utf8").includes(`PPid:\t${process.pid}\n`)
        );
      } catch {
        return false;
      }
    })
    .map(Number);
}
