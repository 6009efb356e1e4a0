/**
 * Takes everything of a machine off the host, whatever is left of it and in whichever state: after a failed create, on
 * remove, and for what an earlier process left behind. Idempotent; the order matters: processes hold mounts and
 * groups, mounts hold files. The engine is not asked: all it keeps is in directories and groups that are ours, and
 * `runsc delete` takes 35 ms, or hangs where a process is frozen.
 */
import { rm, rmdir } from "node:fs/promises";
import type { Cgroups } from "../cgroup/cgroups.ts";
import type { MachineId } from "../driver.ts";
import { unmountBelow } from "../mounts.ts";
import { together } from "../together.ts";
import { trimVolume } from "../volumes/image.ts";
import type { MachinePaths } from "./paths.ts";

export async function cleanUp(
  cgroups: Cgroups,
  id: MachineId,
  paths: MachinePaths,
  killTimeoutMs?: number,
): Promise<void> {
  await cgroups.killAll(id, killTimeoutMs);
  await trimVolume(paths.volume);
  // A native machine's root, and with it whatever holds its disk and its volume.
  await unmountBelow(paths.runDirectory);
  await unmountBelow(paths.directory);
  for (const mountPoint of [paths.root, paths.volume]) await removeMountPoint(mountPoint);
  await together(
    cgroups.remove(id),
    rm(paths.runDirectory, { recursive: true, force: true }),
    rm(paths.directory, { recursive: true, force: true }),
  );
}

/** Never with what is in it: should something still be mounted there, its files are not the machine's to delete. */
async function removeMountPoint(path: string): Promise<void> {
  try {
    await rmdir(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
}
