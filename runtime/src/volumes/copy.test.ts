import { mkdir, mkdtemp, open, readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { RuntimeError } from "../driver.ts";
import { copyVolume } from "./copy.ts";
import { parseExtents } from "./extents.ts";

const MIB = 1024 * 1024;
let place: string;
let from: string;
let to: string;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), "kontor-volumes-"));
  onTestFinished(() => rm(place, { recursive: true }));
  [from, to] = [join(place, "here", "v"), join(place, "there", "v")];
  await mkdir(join(from, "deep", "empty"), { recursive: true });
});

const copy = (reserveBytes = 0, signal?: AbortSignal) =>
  copyVolume(from, to, { reserveBytes, ...(signal ? { signal } : {}) });

test("copies byte for byte, without space for holes", async () => {
  const file = await open(join(from, "image"), "w");
  await file.write("begin", 0);
  // The range contains written data that is all zeros.
  await file.write(Buffer.alloc(3 * MIB), 0, 3 * MIB, 50 * MIB + 5);
  await file.write("middle", 40 * MIB - 3);
  await file.truncate(100 * MIB + 7);
  await file.close();
  await writeFile(join(from, "deep", "small"), "small");
  const { bytes, sha256 } = await copy();
  const [copied, original] = await Promise.all([to, from].map((at) => readFile(join(at, "image"))));
  expect(copied?.equals(original ?? Buffer.of())).toBe(true);
  expect(await readFile(join(to, "deep", "small"), "utf8")).toBe("small");
  expect(await readdir(join(to, "deep"))).toEqual(["empty", "small"]);
  expect((await stat(join(to, "image"))).blocks * 512).toBeLessThan(4 * MIB);
  expect(bytes).toBe(3 * MIB + 5);
  expect(await copy()).toEqual({ bytes, sha256 });
});

test("parses a listing of extents completely or not at all", () => {
  const head = "Filesystem type is: ef53\nFile size of /v is 104857600 (104857600 blocks of 1 bytes)\n";
  const columns = " ext:     logical_offset:        physical_offset: length:   expected: flags:\n";
  const lines = [
    "   0:        0..    4095: 257645608960..257645613055:   4096:\n",
    "   1: 31457280..33554431: 257645608960..257647706111: 2097152:   31457280: last,unwritten\n",
  ].join("");
  expect(parseExtents(`${head}${columns}${lines}/v: 2 extents found\n`)).toEqual([
    { start: 0, end: 4096 },
    { start: 31_457_280, end: 33_554_432 },
  ]);
  expect(parseExtents(`${head}/v: 0 extents found\n`)).toEqual([]);
  expect(parseExtents(`${head}${columns}${lines}`)).toBeUndefined();
});

test("restarts after the leftovers of an earlier attempt, and deletes them when the next attempt fails too", async () => {
  await writeFile(join(from, "image"), "new");
  for (const left of [to, `${to}.unfinished`]) {
    await mkdir(left, { recursive: true });
    await writeFile(join(left, "image"), "old and longer");
  }
  await copy();
  expect(await readFile(join(to, "image"), "utf8")).toBe("new");
  expect(await readdir(join(place, "there"))).toEqual(["v"]);
  const ended = copy(0, AbortSignal.abort(new Error("the server ends")));
  await expect(ended).rejects.toThrow("the server ends");
  expect(await readdir(join(place, "there"))).toEqual([]);
});

test("copies nothing to a disk that would become too full", async () => {
  await writeFile(join(from, "image"), "full");
  await expect(copy(Number.MAX_SAFE_INTEGER)).rejects.toMatchObject({ kind: "no_capacity" });
  expect(await readdir(join(place, "there"))).toEqual([]);
});

test("reports a missing volume", async () => {
  await rm(from, { recursive: true });
  await expect(copy()).rejects.toThrow(RuntimeError);
  await expect(copy()).rejects.toMatchObject({ kind: "volume_missing" });
});
