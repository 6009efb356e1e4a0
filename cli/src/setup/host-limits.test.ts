import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { hostLimitsStep, lowLimits } from "./host-limits.ts";
import { setUp } from "./setup.ts";

/** Makes a directory of kernel values in the layout of /proc/sys. */
function values(of: Record<string, string>): string {
  const root = mkdtempSync(join(tmpdir(), "kontor-limits-"));
  onTestFinished(() => rmSync(root, { recursive: true }));
  for (const [name, value] of Object.entries(of)) {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), `${value}\n`);
  }
  return root;
}

test("lists limits below their minimum, and none that are unlimited or unknown to the kernel", () => {
  const root = values({
    "fs/inotify/max_user_instances": "128",
    "fs/inotify/max_user_watches": "1048576",
    "fs/pipe-user-pages-soft": "0",
  });
  expect(lowLimits(root)).toMatchObject([
    { name: "fs.inotify.max_user_instances", value: 128, atLeast: 1024 },
  ]);
});

test.skipIf(process.getuid?.() !== 0)(
  "raises low limits, keeps them after a reboot, and lowers no limit",
  async () => {
    const root = values({ "fs/inotify/max_user_instances": "128", "fs/inotify/max_user_watches": "1048576" });
    const keptAt = join(root, "60-kontor.conf");
    await setUp([hostLimitsStep(root, keptAt)]);
    expect(lowLimits(root)).toEqual([]);
    expect(readFileSync(join(root, "fs/inotify/max_user_watches"), "utf8")).toBe("1048576\n");
    expect(readFileSync(keptAt, "utf8")).toMatch(/^#.*\nfs\.inotify\.max_user_instances = 1024\n$/);
    expect(await hostLimitsStep(root, keptAt).missing()).toEqual([]);
  },
);
