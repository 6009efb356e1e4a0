import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { BlobExists, BlobNotFound } from "./blobs.ts";
import { FsBlobs } from "./fs.ts";

async function scratch(): Promise<{ blobs: FsBlobs; directory: string }> {
  const directory = await mkdtemp(join(tmpdir(), "kontor-blobs-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return { blobs: new FsBlobs(directory), directory };
}
const content = (value: string) => Readable.from([Buffer.from(value)]);

test("returns stored bytes, whole or as a range, and their checksum", async () => {
  const { blobs } = await scratch();
  const { bytes, sha256 } = await blobs.put("snap/m1/1/pages", content("hello world"));
  expect(bytes).toBe(11);
  expect(sha256).toBe("b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9");
  expect(await text(await blobs.get("snap/m1/1/pages"))).toBe("hello world");
  expect(await text(await blobs.get("snap/m1/1/pages", { start: 6, end: 9 }))).toBe("wor");
  expect((await blobs.head("snap/m1/1/pages"))?.bytes).toBe(11);
});

test("keeps the old blob and no new bytes when a put fails midway", async () => {
  const { blobs, directory } = await scratch();
  await blobs.put("a", content("old"));
  const broken = (async function* () {
    yield Buffer.from("new");
    throw new Error("cut");
  })();
  await expect(blobs.put("a", broken)).rejects.toThrow("cut");
  expect(await text(await blobs.get("a"))).toBe("old");
  expect(await readdir(join(directory, ".unfinished"))).toEqual([]);
});

test("lets only one of two concurrent puts with ifNoneMatch succeed", async () => {
  const { blobs } = await scratch();
  const puts = ["one", "two"].map((value) => blobs.put("k", content(value), { ifNoneMatch: true }));
  const results = await Promise.allSettled(puts);
  expect(results.filter((result) => result.status === "fulfilled")).toHaveLength(1);
  expect(results.find((result) => result.status === "rejected")?.reason).toBeInstanceOf(BlobExists);
});

test("returns no size of a missing blob, fails to get it, and accepts its deletion", async () => {
  const { blobs } = await scratch();
  expect(await blobs.head("nothing")).toBeUndefined();
  await expect(blobs.get("nothing")).rejects.toBeInstanceOf(BlobNotFound);
  await blobs.delete("nothing");
});

test("lists keys by prefix, in order, without unfinished uploads", async () => {
  const { blobs } = await scratch();
  for (const key of ["snap/b/1", "snap/a/2", "other"]) await blobs.put(key, content(key));
  expect(await blobs.list("snap/")).toEqual(["snap/a/2", "snap/b/1"]);
});

test("rejects a key that would leave the directory", async () => {
  const { blobs } = await scratch();
  for (const key of ["../x", "a/../../x", "/etc/passwd", "a//b", "", "a/.", ".."]) {
    await expect(blobs.put(key, content("x"))).rejects.toThrow("is not a blob key");
  }
});
