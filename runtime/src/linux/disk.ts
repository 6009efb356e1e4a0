/**
 * A machine's disk: a sparse file with an ext4 filesystem, mounted through a loop device. The file's size is
 * the limit, because every kernel enforces it, and many kernels lack project quotas. The guest gets ENOSPC,
 * and the host's disk is safe.
 */
import { mkdir, open, stat, statfs } from "node:fs/promises";
import { run } from "../exec.ts";
import { mkfsArgv, mountArgv, type DiskLayout } from "./argv.ts";

/**
 * Overhead of ext4 in bytes: 2 % or 16 MiB of reserved clusters, and its tables. The file is larger by this overhead,
 * so the guest gets the promised size.
 */
const OVERHEAD_BYTES = 24 * 1024 * 1024;
const BLOCK_BYTES = 4096;

/** Share of a disk for its inodes: an inode of 256 bytes for each 16 KiB. */
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
 * Returns the bytes that files occupy on the filesystem of `directory`. Missing files and files of other filesystems
 * count zero.
 */
export async function allocatedBytes(directory: string, files: readonly string[]): Promise<number> {
  const { dev } = await stat(directory);
  const taken = await Promise.all(
    files.map(async (file) => {
      const found = await stat(file).catch(() => undefined);
      return found?.dev === dev ? found.blocks * 512 : 0;
    }),
  );
  return taken.reduce((sum, bytes) => sum + bytes, 0);
}

/** Returns the bytes that the guest's writable layer occupies. */
export async function diskUsage(disk: string): Promise<number> {
  const { bsize, blocks, bfree } = await statfs(disk);
  return (blocks - bfree) * bsize;
}
