import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, test } from "vitest";
import { lockBackup } from "./lock.ts";
import { append, pack, parseManifest, sha256, unpack } from "./parts.ts";
import { ownMounts } from "./places.ts";
import { mountPointOf } from "./volumes.ts";

const directory = mkdtempSync(path.join(tmpdir(), "kontor-backup-"));
afterAll(() => rmSync(directory, { recursive: true }));

test("refuses a second backup while one runs, and takes the lock of one that died", () => {
  const release = lockBackup(directory);
  expect(() => lockBackup(directory)).toThrow("Another backup runs");
  release();
  // The number is in use, by a process that started at another time.
  writeFileSync(path.join(directory, "backup.lock"), `${process.pid} 1`);
  lockBackup(directory)();
  expect(readdirSync(directory)).toEqual([]);
});

test("unpacks what was packed, leaves out what is excluded, and appends to one archive", async () => {
  const from = mkdtempSync(path.join(directory, "from-"));
  const to = mkdtempSync(path.join(directory, "to-"));
  writeFileSync(path.join(from, "kept"), "kept");
  writeFileSync(path.join(from, "left"), "left");
  const part = path.join(directory, "part.tar.gz");
  expect(await pack(part, from, ["."], { exclude: ["./left"] })).toBe("whole");
  const archive = path.join(directory, "all.tar");
  await append(archive, directory, "part.tar.gz");
  await append(archive, from, "kept");
  const before = await sha256(part);
  rmSync(part);
  await unpack(archive, directory);
  expect(await sha256(part)).toBe(before);
  expect(readdirSync(directory)).toContain("kept");
  await unpack(part, to);
  expect(readdirSync(to)).toEqual(["kept"]);
});

test("refuses a manifest that names a file outside of the archive", () => {
  const manifest = (file: string) =>
    JSON.stringify({ format: 1, parts: [{ kind: "files", file, sha256: "" }], missing: [] });
  expect(parseManifest(manifest("files.tar.gz")).parts).toHaveLength(1);
  for (const file of ["../x", "/etc/passwd", ".."]) {
    expect(() => parseManifest(manifest(file))).toThrow("no backup");
  }
});

test("leaves out mounts that Kontor made, and keeps a disk of the operator", () => {
  const line = (place: string, rest: string) => `36 25 7:1 / ${place} rw shared:1 - ${rest} rw`;
  const mountinfo = [
    line("/d/machines/machines/m1/disk", "ext4 /dev/loop1"),
    line("/d/machines/roots/i1", "overlay overlay"),
    line("/d/snapshots", "ext4 /dev/sdb1"),
    line("/d/machines", "ext4 /dev/sdc1"),
    line("/other/machines/x/y", "overlay overlay"),
  ].join("\n");
  expect(ownMounts("/d", mountinfo)).toEqual(["machines/machines/m1/disk", "machines/roots/i1"]);
});

test("finds the mount point of a device, and passes over a bind mount of its part", () => {
  const mountinfo = "1 2 7:3 /part /bind rw - ext4 /dev/loop3 rw\n1 2 7:3 / /a\\040b rw - ext4 /dev/loop3 rw";
  expect(mountPointOf(mountinfo, "7:3")).toBe("/a b");
  expect(mountPointOf(mountinfo, "7:4")).toBeUndefined();
});
