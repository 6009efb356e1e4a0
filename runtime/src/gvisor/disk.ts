/**
 * A machine's disk: a sparse file with an ext4 filesystem in it, mounted through a loop device. Its size is the limit,
 * which every kernel enforces (project quotas are missing in many): the guest gets ENOSPC and the host is safe.
 */
import { mkdir, open, readFile, statfs } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";
import { mkfsArgv, mountArgv } from "./runsc.ts";

/** What ext4 keeps for itself: 2 % or 16 MiB of reserved clusters, and its tables. The guest gets what it was promised. */
const OVERHEAD_BYTES = 24 * 1024 * 1024;
const BLOCK_BYTES = 4096;
const UMOUNT_TIMEOUT_MS = 3_000;

export async function makeDisk(paths: { diskImage: string; disk: string }, sizeBytes: number): Promise<void> {
  const file = await open(paths.diskImage, "w", 0o600);
  try {
    await file.truncate(Math.ceil((sizeBytes + OVERHEAD_BYTES) / BLOCK_BYTES) * BLOCK_BYTES);
  } finally {
    await file.close();
  }
  await run(mkfsArgv(paths.diskImage));
  await mkdir(paths.disk, { recursive: true });
  await run(mountArgv(paths.diskImage, paths.disk));
}

/** Bytes the guest's writable layer takes. */
export async function diskUsage(disk: string): Promise<number> {
  const { bsize, blocks, bfree } = await statfs(disk);
  return (blocks - bfree) * bsize;
}

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
