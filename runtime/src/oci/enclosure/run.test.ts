import { expect, test } from "vitest";
import { isShort } from "./run.ts";

const roomy = { bsize: 4096, bavail: 1_000_000, files: 6_000_000, ffree: 5_000_000 };

test.each([
  ["has room", {}, false],
  ["has less than a GiB", { bavail: 1000 }, true],
  ["has few inodes", { ffree: 90_000 }, true],
  ["is small and has few inodes", { files: 100_000, ffree: 4_000 }, true],
  ["is small and has inodes", { files: 100_000, ffree: 6_000 }, false],
  ["has no fixed number of inodes", { files: 0, ffree: 0 }, false],
])("ends a build on a disk that %s", (_, fields, expected) => {
  expect(isShort({ ...roomy, ...fields })).toBe(expected);
});
