import { expect, test } from "vitest";
import { mountPointsBelow } from "../mounts.ts";
import { lastError, mkfsArgv, mountArgv, ownRootArgv, sharedRootArgv, shimArgv } from "./argv.ts";
import { hostPaths, isMachineId, machinePaths } from "./paths.ts";
import { freeSlot } from "./records.ts";

const id = "m0123456789abcdefghi";

test("masks /proc/sys/net only on a kernel that requires the mask", () => {
  expect(shimArgv("shim", { maskProcSysNet: false }, ["runsc", "x"])).toEqual([
    "shim",
    "run",
    "--status-fd",
    "3",
    "--",
    "runsc",
    "x",
  ]);
  expect(shimArgv("shim", { maskProcSysNet: true }, ["runsc", "x"])).toEqual([
    "shim",
    "run",
    "--status-fd",
    "3",
    "--mask-proc-sys-net",
    "--",
    "runsc",
    "x",
  ]);
});

test("makes a filesystem for one file in the disk image, mounted without devices and setuid", () => {
  expect(mkfsArgv("/d.img", "one file").join(" ")).toBe(
    "mkfs.ext4 -q -F -m0 -N16 -O ^has_journal,^resize_inode -E lazy_itable_init=1,nodiscard /d.img",
  );
  expect(mountArgv("/d.img", "/d").join(" ")).toBe(
    "mount -o loop,nodev,nosuid,noatime,noinit_itable /d.img /d",
  );
});

test("gives a native machine's disk an inode for each 16 KiB", () => {
  const argv = mkfsArgv("/d.img", "many files");
  expect(argv).toContain("-i16384");
  expect(argv).not.toContain("-N16");
});

test("stacks a root from its layers, the lowest first, and the machine's own mounts", () => {
  const root = { at: "/at", layers: ["/low", "/-high:with,signs"] };
  expect(sharedRootArgv("shim", root)).toEqual(["shim", "root", "--at", "/at", "--", ...root.layers]);
  const own = {
    ...root,
    map: { first: 100_000, count: 65_536 },
    users: "/users",
    disk: "/disk",
    netns: "/run/netns/n",
  };
  expect(ownRootArgv("shim", { ...own, volume: "/volume" }).join(" ")).toBe(
    "shim root --at /at --map 100000:65536 --users /users --disk /disk --netns /run/netns/n --volume /volume -- /low /-high:with,signs",
  );
  expect(ownRootArgv("shim", own)).not.toContain("--volume");
  const stored = { at: "/at", layers: ["/data/oci/bases/store/overlay/abc/diff", "/ours"] };
  expect(sharedRootArgv("shim", stored).slice(5)).toEqual([
    "/data/oci/bases/./store/overlay/abc/diff",
    "/ours",
  ]);
});

test("keeps socket paths within the kernel's 107 bytes for any state directory", () => {
  const deep = machinePaths(hostPaths(`/${"x".repeat(300)}`, 63), id);
  expect(Buffer.byteLength(deep.guestSocket)).toBeLessThanOrEqual(107);
  expect(Buffer.byteLength(`${deep.engineRoot}/runsc-${id}.sock`)).toBeLessThanOrEqual(107);
});

test("makes a path only from a machine id of the fixed form", () => {
  expect(isMachineId(id)).toBe(true);
  for (const bad of ["m1", "../../etc", `${id}/..`, `x${id.slice(1)}`, `${id}a`, id.toUpperCase()]) {
    expect(isMachineId(bad)).toBe(false);
  }
});

test("reads the last error of runsc from its log", () => {
  const log = '{"msg":"first","level":"error"}{"msg":"it said \\"no\\"","level":"error"}';
  expect(lastError(log)).toBe('it said "no"');
  expect(lastError("")).toBeUndefined();
});

test("finds the mounts below a directory, the deepest first, and no other mounts", () => {
  const mountinfo = [
    "1 0 0:1 / / rw - ext4 /dev/vda rw",
    "2 1 7:0 / /state/machines/m1/disk rw - ext4 /dev/loop0 rw",
    "3 1 7:1 / /state/machines/m1/disk/in\\040side rw - ext4 /dev/loop1 rw",
    "4 1 7:2 / /state/machines/m10/disk rw - ext4 /dev/loop2 rw",
  ].join("\n");
  expect(mountPointsBelow(mountinfo, "/state/machines/m1")).toEqual([
    "/state/machines/m1/disk/in side",
    "/state/machines/m1/disk",
  ]);
});

test("returns the smallest free slot", () => {
  expect(freeSlot([])).toBe(0);
  expect(freeSlot([0, 1, 3])).toBe(2);
});
