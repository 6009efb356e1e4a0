import { expect, test } from "vitest";
import { directArgv, fsckArgv, mkfsVolumeArgv, mountVolumeArgv, repairArgv } from "./argv.ts";
import { imageBytes, usedBytes } from "./image.ts";

const GIB = 1024 ** 3;

test("gives a volume a journal, and disables devices and setuid programs on it for the host", () => {
  expect(mkfsVolumeArgv("/v/volume.ext4").join(" ")).toBe(
    "mkfs.ext4 -q -F -m0 -J size=64 -O ^resize_inode -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /v/volume.ext4",
  );
  expect(mountVolumeArgv("/v/volume.ext4", "/m")).toEqual([
    "mount",
    "-o",
    "loop,nodev,nosuid,noatime,noinit_itable,errors=remount-ro",
    "/v/volume.ext4",
    "/m",
  ]);
});

test("makes a volume's device bypass the host's page cache", () => {
  expect(directArgv("/dev/loop7")).toEqual(["losetup", "--direct-io=on", "/dev/loop7"]);
});

test("makes safe repairs in the first check, and all repairs in the second", () => {
  expect(fsckArgv("/v")).toEqual(["e2fsck", "-p", "/v"]);
  expect(repairArgv("/v")).toEqual(["e2fsck", "-f", "-y", "/v"]);
});

test("makes an image larger than its content by the overhead of ext4, in whole MiB", () => {
  for (const gib of [1, 10, 100]) {
    const bytes = imageBytes(gib * GIB);
    expect(bytes % 1024 ** 2).toBe(0);
    expect(bytes - gib * GIB).toBeGreaterThan(gib * GIB * 0.0157 + 80 * 1024 ** 2);
    expect(bytes - gib * GIB).toBeLessThan(gib * GIB * 0.02 + 100 * 1024 ** 2);
  }
});

test("reads the usage from a superblock: blocks that are neither free nor overhead of ext4", () => {
  const superblock = Buffer.alloc(1024);
  superblock.writeUInt32LE(10_000, 0x04);
  superblock.writeUInt32LE(1, 0x150);
  superblock.writeUInt32LE(9_000, 0x0c);
  superblock.writeUInt32LE(1, 0x158);
  superblock.writeUInt32LE(600, 0x248);
  superblock.writeUInt32LE(2, 0x18);
  expect(usedBytes(superblock)).toBe(400 * 4096);
});
