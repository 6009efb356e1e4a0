/**
 * A volume: a sparse file with an ext4 filesystem in it, in a directory of its own. While a machine has it, it is
 * mounted through a loop device on a directory of that machine's, so that whatever takes a machine off the host takes
 * the mount off as well. Its size is what the kernel enforces; it takes what is in it.
 */
import { mkdir, open, readFile, rename, rmdir, stat, statfs } from "node:fs/promises";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError, type VolumeSpec } from "../driver.ts";
import { run } from "../exec.ts";
import { mountPointsBelow } from "../mounts.ts";
import { begin, syncDirectory } from "../snapshots/manifest.ts";
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

/** Repairs were made; with 2 e2fsck asks for a reboot, which is for mounted filesystems. */
const REPAIRED = [0, 1, 2];
const FSCK_TIMEOUT_MS = 30_000;
const REPAIR_TIMEOUT_MS = 300_000;
const TRIM_TIMEOUT_MS = 20_000;
/** Whatever has a file open there is on its way out, or a person's. */
const LET_GO_TIMEOUT_MS = 30_000;
const SYNC_TIMEOUT_MS = 60_000;
const MIB = 1024 * 1024;

/** Mounts a volume, which is made first where that is asked for and checked where it is not clean. */
export async function attachVolume(volume: VolumeSpec, mountPoint: string): Promise<void> {
  const image = imageOf(volume.directory);
  const isThere = await exists(image);
  if (!isThere && !volume.isNew) {
    throw new RuntimeError("volume_missing", "the volume's data is not where it should be", {
      details: { directory: volume.directory },
    });
  }
  if (!isThere) await makeVolume(volume);
  await untilLetGo(volume.directory);
  await check(image);
  await mkdir(mountPoint, { recursive: true, mode: 0o700 });
  await run(mountVolumeArgv(image, mountPoint));
  await bypassCache(image);
  // A volume that is empty looks empty; a repair that needs the directory makes it again.
  if (!isThere) await rmdir(join(mountPoint, "lost+found"));
}

/** A volume whose host cannot do it is slower to sync, and as good. */
async function bypassCache(image: string): Promise<void> {
  try {
    const [device] = /^\/dev\/loop\d+/.exec((await run(loopArgv(image))).stdout) ?? [];
    if (device !== undefined) await run(directArgv(device));
  } catch (error) {
    if (!(error instanceof RuntimeError)) throw error;
  }
}

/**
 * Until no loop device has the image: a filesystem that is in use must be neither checked nor copied. As a rule nothing
 * has it: removing a machine's mount point takes the mount out of every copy of the host's mounts (rmdir(2) detaches it
 * there), such as a machine has while it is started. What holds a file on it open is waited for.
 */
export async function untilLetGo(directory: string): Promise<void> {
  const deadline = performance.now() + LET_GO_TIMEOUT_MS;
  while ((await run(loopArgv(imageOf(directory)))).stdout.trim() !== "") {
    if (performance.now() > deadline) {
      throw new RuntimeError("volume_in_use", "the volume is still in use somewhere on the host");
    }
    await sleep(20);
  }
}

/** What was deleted goes back to the host. To be followed by the unmounting; does nothing where nothing is mounted. */
export async function trimVolume(mountPoint: string): Promise<void> {
  const mounts = await readFile("/proc/self/mountinfo", "utf8");
  if (!mountPointsBelow(mounts, mountPoint).includes(mountPoint)) return;
  try {
    // What was deleted is free only once the journal says so.
    await syncVolume(mountPoint);
    await run(trimArgv(mountPoint), { timeoutMs: TRIM_TIMEOUT_MS });
  } catch {
    // One that cannot be trimmed, or not in time, is as good a volume as any.
  }
}

/** All that was written to an attached volume is on the host's disk when this returns. */
export async function syncVolume(mountPoint: string): Promise<void> {
  await run(syncArgv(mountPoint), { timeoutMs: SYNC_TIMEOUT_MS });
}

/** Bytes that files take: asked of the filesystem where it is mounted, else read from its superblock. */
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

/** Undefined where nothing is mounted there: of a machine that is being removed, any more. */
async function mountedUsage(mountPoint: string): Promise<number | undefined> {
  try {
    const { bsize, blocks, bfree } = await statfs(mountPoint);
    // Asked for afterwards: without its mount the directory speaks for the host's own disk.
    const [here, above] = await Promise.all([stat(mountPoint), stat(dirname(mountPoint))]);
    return here.dev === above.dev ? undefined : (blocks - bfree) * bsize;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

const SUPERBLOCK_AT = 1024;
const SUPERBLOCK_BYTES = 1024;

/** From the superblock, as the kernel's "ext4 Data Structures and Algorithms" gives its fields. */
export function usedBytes(superblock: Buffer): number {
  const wide = (low: number, high: number) =>
    superblock.readUInt32LE(low) + superblock.readUInt32LE(high) * 2 ** 32;
  const blocks = wide(0x04, 0x150) - wide(0x0c, 0x158);
  const overhead = superblock.readUInt32LE(0x248);
  return Math.max(0, blocks - overhead) * (1024 << superblock.readUInt32LE(0x18));
}

/**
 * What ext4 keeps for itself: inode tables (256 bytes for each 16 KiB), the journal, 16 MiB of reserved clusters, and
 * bitmaps. The guest gets what it was promised.
 */
export function imageBytes(sizeBytes: number): number {
  const whole = sizeBytes + Math.ceil(sizeBytes / 56) + (JOURNAL_MIB + 32) * MIB;
  return Math.ceil(whole / MIB) * MIB;
}

async function makeVolume({ directory, sizeBytes }: VolumeSpec): Promise<void> {
  const at = await begin(directory);
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

/** The file that holds a volume. */
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
