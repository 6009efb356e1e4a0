/** Tests roots of machines whose layers are in a store with planted symlinks. */
import { mkdtempSync } from "node:fs";
import { mkdir, readdir, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { run } from "../exec.ts";
import { sharedRootArgv } from "../linux/argv.ts";
import { unmountBelow } from "../mounts.ts";
import { shimBinary } from "./testing/builds.ts";
import { layerDirectory } from "./store.ts";

const directory = mkdtempSync(join(tmpdir(), "kontor-links-"));
const [oci, secret, at] = ["oci", "secret", "at"].map((name) => join(directory, name)) as [
  string,
  string,
  string,
];
const id = "a".repeat(64);
const layer = layerDirectory(join(oci, "workspaces/one/store"), id);

beforeAll(() => run(["make", "-C", join(shimBinary, "../..")], { timeoutMs: 120_000 }));
beforeEach(async () => {
  await mkdir(layer, { recursive: true });
  await mkdir(at);
  await mkdir(join(directory, "ours"));
  await writeFile(join(layer, "own"), "");
  await mkdir(join(secret, id, "diff"), { recursive: true });
  await writeFile(join(secret, id, "diff/secret"), "");
});
afterEach(async () => {
  await unmountBelow(directory);
  for (const name of await readdir(directory))
    await rm(join(directory, name), { recursive: true, force: true });
});
afterAll(() => rm(directory, { recursive: true, force: true }));

/** Lists the names in the root of a machine with this layer. */
async function namesOf(path: string): Promise<string[]> {
  await run(sharedRootArgv(shimBinary, { at, layers: [path, join(directory, "ours")] }));
  return readdir(at);
}

test.each([
  ["store/overlay", (): string => secret],
  [`store/overlay/${id}`, (): string => join(secret, id)],
  [`store/overlay/${id}/diff`, (): string => join(secret, id, "diff")],
])("refuses to mount a layer through a symlink at %s", async (name, target) => {
  const planted = join(oci, "workspaces/one", name);
  await rm(planted, { recursive: true });
  await symlink(target(), planted);
  await expect(namesOf(layer)).rejects.toThrow(/Too many levels of symbolic links|Not a directory/);
  expect(await readFile("/proc/self/mountinfo", "utf8")).not.toContain(directory);
});

test("mounts layers when the data directory is a symlink to another disk", async () => {
  expect(await namesOf(layer)).toEqual(["own"]);
  await unmountBelow(directory);
  await rename(oci, join(directory, "other-disk"));
  await symlink("other-disk", oci);
  expect(await namesOf(layer)).toEqual(["own"]);
});
