/**
 * A machine's disk: a sparse file with an ext4 filesystem in it, mounted through a loop device. Its size is the limit,
 * which every kernel enforces (project quotas are missing in many): the guest gets ENOSPC and the host is safe.
 */
import { mkdir, open, stat, statfs } from "node:fs/promises";
import { run } from "../exec.ts";
import { mkfsArgv, mountArgv, type DiskLayout } from "./argv.ts";

/** What ext4 keeps for itself: 2 % or 16 MiB of reserved clusters, and its tables. The guest gets what it was promised. */
const OVERHEAD_BYTES = 24 * 1024 * 1024;
const BLOCK_BYTES = 4096;

/** An inode of 256 bytes for each 16 KiB. */
const INODES_SHARE = 1 / 64;

export async function makeDisk(
  paths: { diskImage: string; disk: string },
  sizeBytes: number,
  layout: DiskLayout,
): Promise<void> {
  const overhead = OVERHEAD_BYTES + (layout === "many files" ? sizeBytes * INODES_SHARE * 1.05 : 0);
  const file = await open(paths.diskImage, "w", 0o600);
  try {
    await file.truncate(Math.ceil((sizeBytes + overhead) / BLOCK_BYTES) * BLOCK_BYTES);
  } finally {
    await file.close();
  }
  await run(mkfsArgv(paths.diskImage, layout));
  await mkdir(paths.disk, { recursive: true });
  await run(mountArgv(paths.diskImage, paths.disk));
}

/**
 * Bytes that files occupy on the filesystem of `directory`; files of other filesystems and missing files count zero.
 */
export async function takenBytes(directory: string, files: readonly string[]): Promise<number> {
  const { dev } = await stat(directory);
  const taken = await Promise.all(
    files.map(async (file) => {
      const found = await stat(file).catch(() => undefined);
      return found?.dev === dev ? found.blocks * 512 : 0;
    }),
  );
  return taken.reduce((sum, bytes) => sum + bytes, 0);
}

/** Bytes the guest's writable layer takes. */
export async function diskUsage(disk: string): Promise<number> {
  const { bsize, blocks, bfree } = await statfs(disk);
  return (blocks - bfree) * bsize;
}
