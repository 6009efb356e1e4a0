/**
 * Removes all traces of a machine from the host, in any state: after a failed create, on remove, and for leftovers of
 * an earlier process. Idempotent. The order matters: processes keep mounts and groups in use, and mounts keep files in
 * use. The engine is not called, because all its state is in directories and groups of the driver. `runsc delete` takes
 * 35 ms, or hangs if a process is frozen.
 */
import { rm, rmdir } from "node:fs/promises";
import type { Cgroups } from "../cgroup/cgroups.ts";
import type { MachineId } from "../driver.ts";
import { unmountBelow } from "../mounts.ts";
import { waitForAll } from "../wait-for-all.ts";
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
  // Unmounts a native machine's root, and thereby frees its disk and its volume.
  await unmountBelow(paths.runDirectory);
  await unmountBelow(paths.directory);
  for (const mountPoint of [paths.root, paths.volume]) await removeMountPoint(mountPoint);
  await waitForAll(
    cgroups.remove(id),
    rm(paths.runDirectory, { recursive: true, force: true }),
    rm(paths.directory, { recursive: true, force: true }),
  );
}

/**
 * Removes an empty directory. Never deletes recursively: if something is still mounted there, its files do not belong
 * to the machine.
 */
async function removeMountPoint(path: string): Promise<void> {
  try {
    await rmdir(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
}
