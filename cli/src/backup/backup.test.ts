import { spawn } from "node:child_process";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, expect, onTestFinished, test } from "vitest";
import { lockBackup } from "./lock.ts";
import { append, extract, pack, parseManifest, parseShrunk, sha256, unpack } from "./parts.ts";
import { followLinks, ownMounts, refuseLinkedDirectories } from "./places.ts";
import { absentVolumes, copyVolume, mountPointOf } from "./volumes.ts";

const directory = mkdtempSync(path.join(tmpdir(), "kontor-backup-"));
afterAll(() => rmSync(directory, { recursive: true }));

test("refuses a second backup while the first runs, and replaces the lock of a process that ended", () => {
  const release = lockBackup(directory);
  expect(() => lockBackup(directory)).toThrow("Another backup runs");
  release();
  // Another process with another start time has this pid.
  writeFileSync(path.join(directory, "backup.lock"), `${process.pid} 1`);
  lockBackup(directory)();
  expect(readdirSync(directory)).toEqual([]);
});

test("packs and unpacks files without the excluded ones, and appends files to an archive", async () => {
  const from = mkdtempSync(path.join(directory, "from-"));
  const to = mkdtempSync(path.join(directory, "to-"));
  writeFileSync(path.join(from, "kept"), "kept");
  writeFileSync(path.join(from, "left"), "left");
  const part = path.join(directory, "part.tar.gz");
  expect(await pack(part, from, ["."], { exclude: ["./left"] })).toEqual({ isWhole: true, shrunk: [] });
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

test("refuses a manifest that names a file outside the archive", () => {
  const manifest = (file: string) =>
    JSON.stringify({
      format: 1,
      host_id: "host_a",
      parts: [{ kind: "files", file, sha256: "a".repeat(64) }],
      missing: [],
    });
  expect(parseManifest(manifest("files.tar.gz")).parts).toHaveLength(1);
  for (const file of ["../x", "/etc/passwd", ".."]) {
    expect(() => parseManifest(manifest(file))).toThrow("no backup");
  }
});

test("excludes mounts that Kontor made, and includes a disk that the operator mounted", () => {
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

test("finds the mount point of a device, and ignores a bind mount of a subdirectory", () => {
  const mountinfo = "1 2 7:3 /part /bind rw - ext4 /dev/loop3 rw\n1 2 7:3 / /a\\040b rw - ext4 /dev/loop3 rw";
  expect(mountPointOf(mountinfo, "7:3")).toBe("/a b");
  expect(mountPointOf(mountinfo, "7:4")).toBeUndefined();
});

test.each([
  ["no JSON", "no backup that this Kontor can read"],
  ["null", "no backup that this Kontor can read"],
  [JSON.stringify({ format: 1, host_id: "host_a", parts: [null] }), "no backup that this Kontor can read"],
  [JSON.stringify({ format: 1, host_id: "../../etc", parts: [] }), "no backup that this Kontor can read"],
  [JSON.stringify({ format: 2 }), "of a newer Kontor"],
])("refuses the manifest %s", (text, message) => {
  expect(() => parseManifest(text)).toThrow(message);
});

test("refuses an archive with a symlink in place of a part, and does not touch the symlink's target", async () => {
  const from = mkdtempSync(path.join(directory, "hostile-"));
  const to = mkdtempSync(path.join(directory, "stage-"));
  writeFileSync(path.join(from, "manifest.json"), "{}");
  symlinkSync("/etc/passwd", path.join(from, "files.tar.gz"));
  const archive = path.join(directory, "hostile.tar");
  await pack(archive, from, ["manifest.json", "files.tar.gz"], { compress: false });
  await extract(archive, to, ["manifest.json"]);
  expect(readdirSync(to)).toEqual(["manifest.json"]);
  await expect(extract(archive, to, ["files.tar.gz"])).rejects.toThrow("not a complete backup");
});

test("packs the content behind an operator's symlinks, and reports a deeper symlink that is not followed", async () => {
  const data = mkdtempSync(path.join(directory, "data-"));
  const disk = mkdtempSync(path.join(directory, "disk-"));
  const to = mkdtempSync(path.join(directory, "linked-"));
  writeFileSync(path.join(disk, "image"), "image");
  symlinkSync("image", path.join(disk, "link"));
  writeFileSync(path.join(disk, "kontor.toml"), "a = 1");
  symlinkSync(disk, path.join(data, "images"));
  symlinkSync(path.join(disk, "kontor.toml"), path.join(data, "kontor.toml"));
  mkdirSync(path.join(data, "machines"));
  symlinkSync(disk, path.join(data, "machines", "images"));

  const { names, files, lost } = followLinks(data, readdirSync(data));
  expect(lost).toEqual([expect.stringContaining(`${path.join(data, "machines/images")}: a symlink to`)]);
  await pack(path.join(directory, "names.tar.gz"), data, names);
  await pack(path.join(directory, "files.tar.gz"), data, files, { followLinks: true });
  await unpack(path.join(directory, "names.tar.gz"), to);
  await unpack(path.join(directory, "files.tar.gz"), to);

  expect(lstatSync(path.join(to, "images")).isDirectory()).toBe(true);
  expect(readFileSync(path.join(to, "images/image"), "utf8")).toBe("image");
  // A symlink that is content stays a symlink.
  expect(lstatSync(path.join(to, "images/link")).isSymbolicLink()).toBe(true);
  expect(lstatSync(path.join(to, "kontor.toml")).isFile()).toBe(true);
});

test("refuses a restored symlink in place of a directory, and accepts a symlink in place of a file", () => {
  const data = mkdtempSync(path.join(directory, "restored-"));
  symlinkSync("/etc/hostname", path.join(data, "kontor.toml"));
  refuseLinkedDirectories(data);
  symlinkSync("/etc", path.join(data, "git"));
  expect(() => refuseLinkedDirectories(data)).toThrow("a symlink in the place of the directory git");
});

test("parses tar's messages for files that shrank while tar read them", () => {
  const output = [
    "tar: logs/server.log: file changed as we read it",
    "tar: images/a b: File shrank by 1 byte; padding with zeros",
    "tar: logs/server.log: File shrank by 5242880 bytes; padding with zeros",
  ].join("\n");
  expect(parseShrunk(output)).toEqual(["images/a b", "logs/server.log"]);
});

test("excludes Kontor's mounts below a data directory whose name has a space", () => {
  const line = "36 25 7:1 / /my\\040data/machines/roots/i1 rw - overlay overlay rw";
  expect(ownMounts("/my data", line)).toEqual(["machines/roots/i1"]);
});

test("reports a volume whose row is in the dump and whose data is not in the backup", () => {
  const volume = (id: string, region = "local") => ({ id, region });
  const dumped = ["copied", "deleted", "unmounted", "moved"].map((id) => volume(id));
  const now = [volume("copied"), volume("unmounted"), volume("moved", "other")];
  expect(absentVolumes(dumped, new Set(["local/copied", "other/moved"]), now)).toEqual({
    deleted: ["deleted"],
    lost: [
      expect.stringContaining(
        "volume unmounted: its data is not in the volume directory of the region local",
      ),
      expect.stringContaining("volume moved: it was moved to the region other meanwhile"),
    ],
  });
});

test("reports an unmounted volume that changes during each attempt to copy it", async () => {
  const image = path.join(directory, "volume.ext4");
  // The file is so large that the writer runs during each copy, also on a busy host.
  const bytes = 64 * 1024 ** 2;
  writeFileSync(image, Buffer.alloc(bytes, "x"));
  const writer = spawn("sh", ["-c", 'while :; do printf x >>"$0"; done', image], { stdio: "ignore" });
  onTestFinished(() => void writer.kill("SIGKILL"));
  await expect.poll(() => statSync(image).size).toBeGreaterThan(bytes);
  const copied = await copyVolume(image, path.join(directory, "copy.ext4"));
  expect(copied).toEqual({ failure: "it changed each time it was copied" });
});

test("reports a volume as missing when its file does not exist", async () => {
  const target = path.join(directory, "none.ext4");
  expect(await copyVolume(path.join(directory, "gone/volume.ext4"), target)).toBe("missing");
  expect(existsSync(target)).toBe(false);
});
