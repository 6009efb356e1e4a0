/** Mounts that are to go: of a machine's disk, of a build that was cut off. */
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "./driver.ts";
import { run } from "./exec.ts";

const UMOUNT_TIMEOUT_MS = 3_000;

/** Unmounts whatever is mounted on or below `directory`; its loop devices detach by themselves. */
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
      // The last task that held it may still be on its way out. Past the deadline it is taken out of sight, and the
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

/** From `/proc/self/mountinfo`, the deepest first. */
export function mountPointsBelow(mountinfo: string, directory: string): string[] {
  return mountinfo
    .split("\n")
    .map((line) => unescapeOctal(line.split(" ")[4] ?? ""))
    .filter((mountPoint) => mountPoint === directory || mountPoint.startsWith(`${directory}/`))
    .toReversed();
}

/** proc(5) writes space, tab, newline and backslash as `\040` and the like. */
function unescapeOctal(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)));
}
