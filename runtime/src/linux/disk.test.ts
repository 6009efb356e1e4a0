import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { allocatedBytes } from "./disk.ts";

const MiB = 1024 ** 2;

test("counts the allocated bytes of sparse files, and zero for missing files and other filesystems", async () => {
  const directory = await mkdtemp(join(tmpdir(), "kontor-taken-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const sparse = join(directory, "sparse");
  const file = await open(sparse, "w");
  await file.truncate(1024 * MiB);
  expect(await allocatedBytes(directory, [sparse])).toBeLessThan(MiB);
  await file.write(Buffer.alloc(8 * MiB, 1), 0, 8 * MiB, 512 * MiB);
  await file.sync();
  await file.close();
  const taken = await allocatedBytes(directory, [sparse, join(directory, "missing"), "/proc/self/status"]);
  expect(taken).toBeGreaterThanOrEqual(8 * MiB);
  expect(taken).toBeLessThan(9 * MiB);
});
