/**
 * A volume: a sparse file with an ext4 filesystem, in its own directory. A machine's volume is mounted
 * through a loop device on a directory of that machine, so removing the machine removes the mount too. The
 * kernel enforces the volume's size; the file occupies only the space of its content.
 */
import { mkdir, open, readFile, rename, rmdir, stat, statfs } from "node:fs/promises";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError, type VolumeSpec } from "../driver.ts";
import { run } from "../exec.ts";
import { mountPointsBelow } from "../mounts.ts";
import { makeTemporary, syncDirectory } from "../snapshots/manifest.ts";
import {
  directArgv,
  fsckArgv,
  JOURNAL_MIB,
  loopArgv,
  mkfsVolumeArgv,
  mountVolumeArgv,
  repairArgv,
  syncArgv,
  trimArgv,
} from "./argv.ts";

/** Exit codes of e2fsck after repairs. With 2, e2fsck demands a reboot, which applies only to mounted filesystems. */
const REPAIRED = [0, 1, 2];
const FSCK_TIMEOUT_MS = 30_000;
const REPAIR_TIMEOUT_MS = 300_000;
const TRIM_TIMEOUT_MS = 20_000;
/**
 * Time for programs with an open file on the volume to close it: the programs are ending, or belong to a person on the
 * host.
 */
const LET_GO_TIMEOUT_MS = 30_000;
const SYNC_TIMEOUT_MS = 60_000;
const MIB = 1024 * 1024;

/** Mounts a volume. Makes it first if requested, and checks it if it is not clean. */
export async function attachVolume(volume: VolumeSpec, mountPoint: string): Promise<void> {
  const image = imageOf(volume.directory);
  const isThere = await exists(image);
  if (!isThere && !volume.isNew) {
    throw new RuntimeError("volume_missing", "the volume's data is missing", {
      details: { directory: volume.directory },
    });
  }
  if (!isThere) await makeVolume(volume);
  await waitUntilReleased(volume.directory);
  await check(image);
  await mkdir(mountPoint, { recursive: true, mode: 0o700 });
  await run(mountVolumeArgv(image, mountPoint));
  await bypassCache(image);
  // An empty volume should look empty. A repair that needs the directory makes it again.
  if (!isThere) await rmdir(join(mountPoint, "lost+found"));
}

/** Lets the volume's device bypass the page cache. Without direct I/O, a volume is slower to sync, but works. */
async function bypassCache(image: string): Promise<void> {
  try {
    const [device] = /^\/dev\/loop\d+/.exec((await run(loopArgv(image))).stdout) ?? [];
    if (device !== undefined) await run(directArgv(device));
  } catch (error) {
    if (!(error instanceof RuntimeError)) throw error;
  }
}

/**
 * Waits until no loop device uses the image: a filesystem in use must be neither checked nor copied. Usually no device
 * uses the image. Removing a machine's mount point removes the mount from every copy of the host's mounts, such as that
 * of a starting machine (rmdir(2) detaches it there). The call waits for programs with an open file on the volume.
 */
export async function waitUntilReleased(directory: string): Promise<void> {
  const deadline = performance.now() + LET_GO_TIMEOUT_MS;
  while ((await run(loopArgv(imageOf(directory)))).stdout.trim() !== "") {
    if (performance.now() > deadline) {
      throw new RuntimeError("volume_in_use", "the volume is still in use on the host");
    }
    await sleep(20);
  }
}

/** Returns the space of deleted files to the host. Call this before the unmount; without a mount, it does nothing. */
export async function trimVolume(mountPoint: string): Promise<void> {
  const mounts = await readFile("/proc/self/mountinfo", "utf8");
  if (!mountPointsBelow(mounts, mountPoint).includes(mountPoint)) return;
  try {
    // Space of deleted files is free only after the journal is written.
    await syncVolume(mountPoint);
    await run(trimArgv(mountPoint), { timeoutMs: TRIM_TIMEOUT_MS });
  } catch {
    // A volume that cannot be trimmed in time remains usable.
  }
}

/** Syncs an attached volume: on return, all data written to it is on the host's disk. */
export async function syncVolume(mountPoint: string): Promise<void> {
  await run(syncArgv(mountPoint), { timeoutMs: SYNC_TIMEOUT_MS });
}

/** Returns the bytes that files occupy: from the filesystem if it is mounted, otherwise from its superblock. */
export async function volumeUsage(directory: string, mountPoint: string | undefined): Promise<number> {
  const mounted = mountPoint === undefined ? undefined : await mountedUsage(mountPoint);
  if (mounted !== undefined) return mounted;
  const block = Buffer.alloc(SUPERBLOCK_BYTES);
  try {
    const image = await open(imageOf(directory), "r");
    try {
      await image.read(block, 0, block.length, SUPERBLOCK_AT);
    } finally {
      await image.close();
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return 0;
    throw error;
  }
  return usedBytes(block);
}

/** Returns the usage of a mounted volume. Undefined without a mount, for example while the machine is being removed. */
async function mountedUsage(mountPoint: string): Promise<number | undefined> {
  try {
    const { bsize, blocks, bfree } = await statfs(mountPoint);
    // The mount is checked after the reading: without its mount, the directory would report the host's own disk.
    const [here, above] = await Promise.all([stat(mountPoint), stat(dirname(mountPoint))]);
    return here.dev === above.dev ? undefined : (blocks - bfree) * bsize;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

const SUPERBLOCK_AT = 1024;
const SUPERBLOCK_BYTES = 1024;

/** Returns the used bytes from a superblock. The fields are in the kernel's "ext4 Data Structures and Algorithms". */
export function usedBytes(superblock: Buffer): number {
  const wide = (low: number, high: number) =>
    superblock.readUInt32LE(low) + superblock.readUInt32LE(high) * 2 ** 32;
  const blocks = wide(0x04, 0x150) - wide(0x0c, 0x158);
  const overhead = superblock.readUInt32LE(0x248);
  return Math.max(0, blocks - overhead) * (1024 << superblock.readUInt32LE(0x18));
}

/**
 * Returns the size of an image: the volume's size and the overhead of ext4. The overhead is inode tables (256 bytes for
 * each 16 KiB), the journal, 16 MiB of reserved clusters, and bitmaps. So the guest gets the promised size.
 */
export function imageBytes(sizeBytes: number): number {
  const whole = sizeBytes + Math.ceil(sizeBytes / 56) + (JOURNAL_MIB + 32) * MIB;
  return Math.ceil(whole / MIB) * MIB;
}

async function makeVolume({ directory, sizeBytes }: VolumeSpec): Promise<void> {
  const at = await makeTemporary(directory);
  const image = await open(imageOf(at), "wx", 0o600);
  try {
    await image.truncate(imageBytes(sizeBytes));
    await run(mkfsVolumeArgv(imageOf(at)));
    await image.sync();
  } finally {
    await image.close();
  }
  await syncDirectory(at);
  await rename(at, directory);
  await syncDirectory(dirname(directory));
}

async function check(image: string): Promise<void> {
  try {
    await run(fsckArgv(image), { okCodes: REPAIRED, timeoutMs: FSCK_TIMEOUT_MS });
  } catch (error) {
    if (!(error instanceof RuntimeError) || error.kind !== "failed") throw error;
    await run(repairArgv(image), { okCodes: REPAIRED, timeoutMs: REPAIR_TIMEOUT_MS });
  }
}

/** Returns the path of the file that holds a volume. */
export function imageOf(directory: string): string {
  return join(directory, "volume.ext4");
}

async function exists(path: string): Promise<boolean> {
  try {
    await (await open(path, "r")).close();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}
