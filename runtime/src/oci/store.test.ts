/** Tests stores that a hostile builder wrote. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { readFromLayers } from "./files.ts";
import { hasContainers, layerDirectory, readConfig, readStore } from "./store.ts";

const id = (digit: string) => digit.repeat(64);

/** Creates a store with one image of one layer, in a directory that is removed after the test. */
function makeStore() {
  const root = mkdtempSync(join(tmpdir(), "kontor-store-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  const store = join(root, "home/store");
  const secret = join(root, "secret");
  mkdirSync(join(secret, "diff/etc"), { recursive: true });
  writeFileSync(join(secret, "diff/etc/os-release"), "secret");
  writeFileSync(join(secret, "images.json"), '[{"id":"secret"}]');
  for (const name of ["overlay-images", "overlay-layers", "overlay-containers"])
    mkdirSync(join(store, name), { recursive: true });
  mkdirSync(join(layerDirectory(store, id("a")), "etc"), { recursive: true });
  writeFileSync(join(layerDirectory(store, id("a")), "etc/os-release"), "own");
  const write = (file: string, value: unknown) => writeFileSync(join(store, file), JSON.stringify(value));
  write("overlay-images/images.json", [{ id: id("1"), layer: id("a") }]);
  write("overlay-layers/layers.json", [{ id: id("a") }]);
  const link = (target: string, at: string) => {
    rmSync(join(store, at), { recursive: true, force: true });
    symlinkSync(target, join(store, at));
  };
  return { root, store, secret, write, link };
}

test("reads a store through a symlink of the operator", async () => {
  const { root } = makeStore();
  symlinkSync("home", join(root, "elsewhere"));
  const store = join(root, "elsewhere/store");
  const { images } = await readStore(store);
  expect(images).toMatchObject([{ id: id("1"), layer: id("a") }]);
  const layer = layerDirectory(store, id("a"));
  expect(String(await readFromLayers([layer], "etc/os-release", 100))).toBe("own");
});

test("returns an empty store when the directory does not exist", async () => {
  const { root } = makeStore();
  expect((await readStore(join(root, "none"))).images).toEqual([]);
});

test.each(["overlay-images", "overlay-images/images.json"])("follows no symlink at %s", async (at) => {
  const { store, secret, link } = makeStore();
  link(at.endsWith(".json") ? join(secret, "images.json") : secret, at);
  await expect(readStore(store)).rejects.toThrow(/ELOOP|ENOTDIR/);
});

test("follows no symlink to an image's configuration or to containers", async () => {
  const { store, secret, link } = makeStore();
  link(secret, `overlay-images/${id("1")}`);
  await expect(readConfig(store, id("1"))).rejects.toThrow(/ELOOP|ENOTDIR/);
  link(join(secret, "images.json"), "overlay-containers/containers.json");
  await expect(hasContainers(store)).rejects.toThrow("ELOOP");
});

test.each(["overlay", `overlay/${id("a")}`, `overlay/${id("a")}/diff`, `overlay/${id("a")}/diff/etc`])(
  "refuses to read a layer's file through a symlink at %s",
  async (at) => {
    const { root, store, secret, link } = makeStore();
    // Each symlink's target contains the rest of the path.
    const below = ["overlay", id("a"), "diff", "etc"].slice(at.split("/").length);
    mkdirSync(join(secret, ...below), { recursive: true });
    writeFileSync(join(secret, ...below, "os-release"), "secret");
    link(join(root, "secret"), at);
    const read = readFromLayers([layerDirectory(store, id("a"))], "etc/os-release", 100);
    if (at.endsWith("etc")) expect(await read).toBeUndefined();
    else await expect(read).rejects.toThrow(/ELOOP|ENOTDIR/);
  },
);

test.each([
  ["overlay-layers/layers.json", [{ id: "../../../etc" }]],
  ["overlay-layers/layers.json", [{ id: id("a"), parent: ".." }]],
  ["overlay-images/images.json", [{ id: "x/../../y" }]],
  ["overlay-images/images.json", [{ id: id("1"), layer: "/" }]],
])("refuses ids in %s that lead outside of the store: %j", async (file, records) => {
  const { store, write } = makeStore();
  write(file, records);
  await expect(readStore(store)).rejects.toThrow("is not a valid id in a store");
});

test("does not wait for a pipe in place of a record", async () => {
  const { store } = makeStore();
  rmSync(join(store, "overlay-images/images.json"));
  execFileSync("mkfifo", [join(store, "overlay-images/images.json")]);
  await expect(readStore(store)).rejects.toThrow("is no regular file");
});
