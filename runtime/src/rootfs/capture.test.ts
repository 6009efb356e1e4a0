import {
  chmod,
  link,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  symlink,
  writeFile,
} from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { applyCapture, type CaptureLimits } from "./capture.ts";
import { finish } from "./finish.ts";

const [uid, gid] = [process.getuid?.() ?? 0, process.getgid?.() ?? 0];

const u = (number: number, bytes: number) => {
  const text = Buffer.alloc(8);
  text.writeBigUInt64LE(BigInt(number));
  return text.subarray(0, bytes);
};
const owner = (mode = 0o644, who = uid) =>
  Buffer.concat([u(mode, 2), u(who, 4), u(gid, 4), u(1_000_000_000, 8), u(0, 4)]);
const nameRecord = (type: string, name: string | Buffer) =>
  Buffer.concat([Buffer.from(type), u(Buffer.byteLength(name), 1), Buffer.from(name)]);

const same = (name: string) => nameRecord("=", name);
const file = (name: string | Buffer, content = "", options: { mode?: number; isLinked?: boolean } = {}) =>
  Buffer.concat([
    nameRecord("F", name),
    owner(options.mode),
    u(options.isLinked ? 1 : 0, 1),
    u(content.length, 8),
    Buffer.from(content),
  ]);
const other = (name: string, number: number) => Buffer.concat([nameRecord("H", name), u(number, 4)]);
const leads = (name: string, target: string) =>
  Buffer.concat([nameRecord("L", name), owner(), u(target.length, 2), Buffer.from(target)]);
const directory = (name: string, ...entries: Buffer[]) =>
  Buffer.concat([nameRecord("D", name), owner(0o755), ...entries, Buffer.from("U")]);
const end = Buffer.from("E");

let top = "";
let base = "";
let rootfs = "";

/**
 * `base` is an image. `rootfs` is its copy by hard links, the state at the start of a capture. `outside` stands for the
 * host.
 */
beforeEach(async () => {
  top = await mkdtemp(path.join(os.tmpdir(), "kontor-capture-"));
  onTestFinished(() => rm(top, { recursive: true, force: true }));
  base = path.join(top, "base");
  rootfs = path.join(top, "rootfs");
  await mkdir(path.join(base, "etc"), { recursive: true });
  await writeFile(path.join(base, "etc/passwd"), "root\n", { mode: 0o644 });
  await writeFile(path.join(base, "etc/hosts"), "hosts\n");
  await writeFile(path.join(top, "outside"), "host\n", { mode: 0o600 });
  await mkdir(path.join(rootfs, "etc"), { recursive: true });
  for (const name of ["etc/passwd", "etc/hosts"]) await link(path.join(base, name), path.join(rootfs, name));
});

const limits: CaptureLimits = { maxBytes: 1024 ** 2, maxEntries: 100 };

async function apply(records: Buffer[], options: { piece?: number; limits?: Partial<CaptureLimits> } = {}) {
  const bytes = Buffer.concat(records);
  async function* pieces() {
    const piece = options.piece ?? bytes.length;
    for (let at = 0; at < bytes.length; at += piece) yield bytes.subarray(at, at + piece);
  }
  await applyCapture(rootfs, pieces(), { ...limits, ...options.limits });
}

const refusal = (records: Buffer[], options: Parameters<typeof apply>[1] = {}) =>
  apply(records, options).then(
    () => "none",
    (error: { kind?: string; message: string }) => `${error.kind}: ${error.message}`,
  );
const at = (name: string) => path.join(rootfs, name);

test("writes named entries from pieces of any size, and deletes entries that were not named", async () => {
  for (const [piece, size] of [
    [1, 300],
    [7, 300],
    [100_000, 300_000],
  ] as const) {
    await apply(
      [
        directory("etc", same("passwd"), leads("localtime", "/usr/share/zoneinfo/UTC")),
        directory("opt", file("tool", "#!/bin/sh\n", { mode: 0o4755, isLinked: true }), other("tool2", 0)),
        file("large", "x".repeat(size)),
        end,
      ],
      { piece },
    );
    expect((await readdir(rootfs)).toSorted()).toEqual(["etc", "large", "opt"]);
    expect((await readdir(at("etc"))).toSorted()).toEqual(["localtime", "passwd"]);
    expect(await readlink(at("etc/localtime"))).toBe("/usr/share/zoneinfo/UTC");
    const tool = await lstat(at("opt/tool"));
    expect([tool.mode & 0o7777, tool.nlink, tool.mtimeMs]).toEqual([0o4755, 2, 1e12]);
    expect((await lstat(at("opt"))).mtimeMs).toBe(1e12);
    expect((await readFile(at("large"))).length).toBe(size);
    // Restores the copy of the base for the next round.
    await link(path.join(base, "etc/hosts"), at("etc/hosts"));
  }
});

test("replaces a changed file in the copy, and keeps the content, mode and owner of the file in the base image", async () => {
  const before = await lstat(path.join(base, "etc/passwd"));
  await apply([directory("etc", file("passwd", "mallory\n", { mode: 0o600 }), same("hosts")), end]);
  expect(await readFile(at("etc/passwd"), "utf8")).toBe("mallory\n");
  expect(await readFile(path.join(base, "etc/passwd"), "utf8")).toBe("root\n");
  const { mode, uid: owner } = await lstat(path.join(base, "etc/passwd"));
  expect([mode, owner]).toEqual([before.mode, before.uid]);
  // An unchanged file is the same file, not a copy.
  expect((await lstat(at("etc/hosts"))).ino).toBe((await lstat(path.join(base, "etc/hosts"))).ino);
});

test("replaces a file by a directory, and a directory by a file", async () => {
  await apply([file("etc", "flat"), directory("new", directory("er")), end]);
  expect(await readFile(at("etc"), "utf8")).toBe("flat");
  await apply([directory("etc", file("passwd", "deep")), same("new"), end]);
  expect(await readFile(at("etc/passwd"), "utf8")).toBe("deep");
});

test("rejects a name that leads out of the root", async () => {
  for (const name of ["..", ".", "", "a/b", "../outside", "/etc", "nul\0"]) {
    expect(await refusal([file(name, "owned"), end]), JSON.stringify(name)).toContain("guest_protocol");
  }
  expect(await refusal([directory("..", file("outside", "owned")), end])).toContain("guest_protocol");
  expect(await readFile(path.join(top, "outside"), "utf8")).toBe("host\n");
});

test("never writes through, enters or links to a symlink", async () => {
  await symlink(top, at("way"));
  await symlink(path.join(top, "outside"), at("file"));
  // A symlink of the copy that the stream enters as a directory becomes a directory of the image.
  await apply([directory("way", file("outside", "inside")), file("file", "inside"), same("etc"), end]);
  expect(await readFile(path.join(top, "outside"), "utf8")).toBe("host\n");
  expect((await lstat(at("way"))).isDirectory()).toBe(true);
  // A symlink in the stream uses up its name.
  expect(await refusal([leads("x", top), directory("x", file("outside", "owned")), end])).toContain(
    "a repeated name",
  );
  expect(await refusal([leads("x", path.join(top, "outside")), file("x", "owned"), end])).toContain(
    "a repeated name",
  );
  expect(await refusal([leads("x", path.join(top, "outside")), other("y", 0), end])).toContain(
    "did not arrive",
  );
  expect(await readFile(path.join(top, "outside"), "utf8")).toBe("host\n");
});

test("rejects records that the stream may not contain", async () => {
  const wild = Buffer.concat([nameRecord("F", "x"), u(0o10_000, 2), owner().subarray(2), u(0, 9)]);
  for (const records of [
    [same("none"), end],
    [directory("opt", same("passwd")), end],
    [Buffer.from("U")],
    [nameRecord("D", "open"), owner(), end],
    [nameRecord("B", "device"), end],
    [wild, end],
    [Buffer.concat([nameRecord("F", "x"), owner(0o644, 0xffff_ffff), u(0, 9)]), end],
    [leads("x", ""), end],
    [leads("x", "a\0b"), end],
    [file("cut", "whole").subarray(0, -1)],
    [file("no end", "")],
  ]) {
    expect(await refusal(records)).toContain("guest_protocol");
  }
  expect(await refusal([file(Buffer.from([0x66, 0xff]), ""), end])).toContain("not UTF-8");
});

test("bounds a bomb by its stated bytes, even if they never arrive, by its entries, and by its depth", async () => {
  const sparse = Buffer.concat([nameRecord("F", "sparse"), owner(), u(0, 1), u(2 ** 45, 8)]);
  expect(await refusal([sparse])).toContain("exceed 1 MiB");
  const halves = [file("one", "x".repeat(600_000)), file("two", "x".repeat(600_000)), end];
  expect(await refusal(halves)).toContain("exceed 1 MiB");
  const many = Array.from({ length: 101 }, (_, n) => file(`f${n}`));
  expect(await refusal([...many, end])).toContain("more than 100 files");
  const deep = Array.from({ length: 40 }, (_, n) =>
    Buffer.concat([nameRecord("D", "d".repeat(200)), owner(n)]),
  );
  expect(await refusal(deep)).toContain("a path is too long");
});

test("closes the stream when it rejects a record", async () => {
  let isLetGo = false;
  async function* endless() {
    try {
      for (let n = 0; ; n += 1) yield file(`f${n}`);
    } finally {
      isLetGo = true;
    }
  }
  await expect(applyCapture(rootfs, endless(), limits)).rejects.toThrow("more than 100 files");
  expect(isLetGo).toBe(true);
});

test("finishes the image without following its symlinks", async () => {
  const host = path.join(top, "host");
  await mkdir(path.join(host, "lists"), { recursive: true });
  for (const name of ["lists/kept", "sys.log", ".keep", "hostname"])
    await writeFile(path.join(host, name), "host");
  await chmod(host, 0o700);
  await rm(at("etc"), { recursive: true });
  await mkdir(at("var/lib"), { recursive: true });
  for (const [name, target] of [
    ["etc", host],
    ["tmp", host],
    ["workspace", host],
    [".kontor", host],
    ["var/log", host],
    ["var/lib/apt", host],
  ] as const)
    await symlink(target, at(name));
  await finish(rootfs);
  expect((await readdir(host)).toSorted()).toEqual([".keep", "hostname", "lists", "sys.log"]);
  expect(await readdir(path.join(host, "lists"))).toEqual(["kept"]);
  expect(await readFile(path.join(host, "hostname"), "utf8")).toBe("host");
  expect((await lstat(host)).mode & 0o777).toBe(0o700);
  for (const name of ["etc", "tmp", "workspace", ".kontor/run"])
    expect((await lstat(at(name))).isDirectory()).toBe(true);
  expect(await readFile(at("etc/hostname"), "utf8")).toBe("localhost\n");
});
