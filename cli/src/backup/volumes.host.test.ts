import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { run } from "../lib/run.ts";
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

test("copies a mounted volume whole, and thaws it", async () => {
  writeFileSync(path.join(mounted, "kept"), "bytes that nobody synced");
  const copy = path.join(directory, "copy.ext4");
  expect(await copyVolume(image, copy)).toBe("copied");
  // Clean without a replay of the journal: the copy is of a frozen filesystem.
  await must(["e2fsck", "-n", "-f", copy]);
  await must(["mount", "-o", "loop,ro,noload", copy, copied]);
  expect(readFileSync(path.join(copied, "kept"), "utf8")).toBe("bytes that nobody synced");
  await must(["touch", path.join(mounted, "written-after")]);
});

test("reports a volume as missing when it was deleted meanwhile", async () => {
  expect(await copyVolume(path.join(directory, "gone", "volume.ext4"), path.join(directory, "x"))).toBe(
    "missing",
  );
  expect(existsSync(path.join(directory, "x"))).toBe(false);
});

test("thaws the volume when the backup is killed while it is frozen", async () => {
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
  // A write to a frozen filesystem waits for ever.
  await must(["touch", path.join(mounted, "written-after-the-kill")]);
});
