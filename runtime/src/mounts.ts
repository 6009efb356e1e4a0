/** Unmounts file systems: of a machine's disk, or of an interrupted build. */
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "./driver.ts";
import { run } from "./exec.ts";

const UMOUNT_TIMEOUT_MS = 3_000;

/** Unmounts every mount on or below `directory`. Loop devices detach by themselves. */
export async function unmountBelow(directory: string): Promise<void> {
  for (const mountPoint of mountPointsBelow(await readFile("/proc/self/mountinfo", "utf8"), directory)) {
    await unmount(mountPoint);
  }
}

async function unmount(mountPoint: string): Promise<void> {
  const deadline = performance.now() + UMOUNT_TIMEOUT_MS;
  for (let waitMs = 2; ; waitMs = Math.min(waitMs * 2, 100)) {
    try {
      await run(["umount", mountPoint]);
      return;
    } catch (error) {
      // The last task that used the mount may still be exiting. After the deadline, the mount is detached, and the
      // kernel frees it with its last user.
      if (performance.now() > deadline) {
        await run(["umount", "--lazy", mountPoint]);
        return;
      }
      if (!(error instanceof RuntimeError) || !/busy/.test(error.message)) throw error;
      await sleep(waitMs);
    }
  }
}

/** Returns the mount points of `/proc/self/mountinfo` below a directory, the deepest first. */
export function mountPointsBelow(mountinfo: string, directory: string): string[] {
  return mountinfo
    .split("\n")
    .map((line) => unescapeOctal(line.split(" ")[4] ?? ""))
    .filter((mountPoint) => mountPoint === directory || mountPoint.startsWith(`${directory}/`))
    .toReversed();
}

/** Decodes space, tab, newline and backslash, which proc(5) writes as `\040` and so on. */
function unescapeOctal(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)));
}
