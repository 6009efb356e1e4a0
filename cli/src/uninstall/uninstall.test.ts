import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { loadConfig } from "@kontor/server/config.ts";
import { expect, onTestFinished, test, vi } from "vitest";
import { uninstall } from "../commands/uninstall.ts";
import { removeFiles, removeTree } from "./remove.ts";
import { findInstance, findTraces, foreignMounts, type HostPlaces } from "./traces.ts";

interface World {
  data: string;
  places: HostPlaces;
  root: string;
}

/** Makes an installation with number 7, and the paths of its host, all below one directory. */
function installation(): World {
  const root = realpathSync(mkdtempSync(path.join(tmpdir(), "kontor-uninstall-")));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  const place = (...names: string[]) => path.join(root, ...names);
  for (const name of ["data/git", "run/instances", "run/users", "run/7/m1", "netns", "net", "etc"]) {
    mkdirSync(place(name), { recursive: true });
  }
  writeFileSync(place("data/host-id"), "host_a\n");
  writeFileSync(place("run/instances/7"), place("data"));
  symlinkSync(place("run/7/m1"), place("run/users/300"));
  writeFileSync(place("etc/60-kontor.conf"), "");
  const places = {
    run: place("run"),
    namespaces: place("netns"),
    links: place("net"),
    settings: [place("etc/60-kontor.conf")],
    usualData: place("usual"),
  };
  return { data: place("data"), places, root };
}

const configOf = (dataDir: string, env: Record<string, string> = {}) => loadConfig({ dataDir, env });

/** Makes a second installation of the host. */
function another({ root, places }: World): string {
  const data = path.join(root, "other");
  mkdirSync(path.join(data), { recursive: true });
  writeFileSync(path.join(data, "host-id"), "host_b\n");
  writeFileSync(path.join(places.run, "instances/8"), data);
  mkdirSync(path.join(places.run, "8/m2"), { recursive: true });
  symlinkSync(path.join(places.run, "8/m2"), path.join(places.run, "users/301"));
  return data;
}

test("finds the number, network names, leases and settings of the installation", () => {
  const { data, places } = installation();
  for (const name of ["kv7-0", "kv7-1", "kv70-0", "cni-1"])
    writeFileSync(path.join(places.namespaces, name), "");
  for (const name of ["kv7-0", "lo"]) writeFileSync(path.join(places.links, name), "");
  expect(findTraces(configOf(data), { places })).toEqual({
    dataDir: data,
    instance: 7,
    directories: [path.join(places.run, "7")],
    namespaces: ["kv7-0", "kv7-1"],
    links: ["kv7-0"],
    leases: [path.join(places.run, "users/300")],
    settings: places.settings,
    kept: [],
  });
});

test("removes every file of the installation, and leaves the run directory empty", async () => {
  const { data, places, root } = installation();
  const traces = findTraces(configOf(data), { places });
  for (const lease of traces.leases) rmSync(lease);
  await removeFiles(traces, places);
  expect(readdirSync(root).toSorted()).toEqual(["etc", "net", "netns"]);
  expect(readdirSync(path.join(root, "etc"))).toEqual([]);
});

test("keeps the settings, claim and leases of another installation", async () => {
  const world = installation();
  const other = another(world);
  const { data, places } = world;
  const traces = findTraces(configOf(data), { places });
  expect(traces.settings).toEqual([]);
  expect(traces.kept).toEqual([`${places.settings[0]}: used by ${other}`]);
  expect(traces.leases).toEqual([path.join(places.run, "users/300")]);
  await removeFiles(traces, places);
  expect(existsSync(data)).toBe(false);
  expect(readdirSync(other)).toEqual(["host-id"]);
  expect(readdirSync(path.join(places.run, "instances"))).toEqual(["8"]);
  expect(existsSync(path.join(places.run, "8/m2"))).toBe(true);
});

test("removes the volumes of a region on another disk, and keeps add-on backups outside the data directory", () => {
  const { data, places, root } = installation();
  const disk = path.join(root, "disk");
  mkdirSync(path.join(disk, "host_a"), { recursive: true });
  mkdirSync(path.join(disk, "host_b"));
  const backups = path.join(root, "backups");
  const config = configOf(data, { KONTOR_REGIONS: `r1@${disk}`, KONTOR_BACKUPS_DIRECTORY: backups });
  const traces = findTraces(config, { places, keepSettings: true });
  expect(traces.directories).toEqual([path.join(places.run, "7"), path.join(disk, "host_a")]);
  expect(traces.settings).toEqual([]);
  expect(traces.kept).toEqual([`${backups}: backups of add-ons`, `${places.settings[0]}: --keep-settings`]);
});

test("removes symlinks, and does not follow symlinks that lead out of the data directory", async () => {
  const { data, places, root } = installation();
  const outside = path.join(root, "outside");
  mkdirSync(outside);
  writeFileSync(path.join(outside, "kept"), "");
  symlinkSync(outside, path.join(data, "images"));
  symlinkSync(outside, path.join(data, "git", "hooks"));
  symlinkSync(outside, path.join(root, "region"));
  await removeFiles(findTraces(configOf(data), { places }), places);
  await removeTree(path.join(root, "region"));
  expect(existsSync(data)).toBe(false);
  expect(existsSync(path.join(root, "region"))).toBe(false);
  expect(readdirSync(outside)).toEqual(["kept"]);
});

test("removes a data directory that is a symlink, together with the symlink", async () => {
  const { data, places, root } = installation();
  const link = path.join(root, "link");
  symlinkSync(data, link);
  await removeFiles(findTraces(configOf(link), { places }), places);
  expect(readdirSync(root)).not.toContain("data");
  expect(readdirSync(root)).not.toContain("link");
});

test("refuses a directory that has no installation", () => {
  const { places, root } = installation();
  expect(() => findTraces(configOf(path.join(root, "etc")), { places })).toThrow(
    "There is no installation in",
  );
  expect(() => findTraces(configOf("/"), { places })).toThrow("There is no installation in /");
});

test("reports the operator's mounts, and no mounts of machines and builds", () => {
  const line = (place: string, rest: string) => `36 25 7:1 / ${place} rw - ${rest} rw`;
  const mountinfo = [
    line("/d", "ext4 /dev/sdb1"),
    line("/d/machines/machines/m1/disk", "ext4 /dev/loop1"),
    line("/d/oci/w1/mount", "ext4 /dev/vda1"),
    line("/d/snapshots", "ext4 /dev/sdc1"),
    line("/d/a\\040b", "ext4 /dev/vda1"),
    line("/data", "ext4 /dev/sdd1"),
  ].join("\n");
  expect(foreignMounts("/d", mountinfo)).toEqual(["/d/snapshots", "/d/a b"]);
});

test("refuses the number of another installation, and finds no number for the fake runtime", () => {
  const world = installation();
  another(world);
  const find = (env: Record<string, string>) => findInstance(configOf(world.data, env), world.places);
  expect(find({})).toBe(7);
  expect(find({ KONTOR_INSTANCE: "9" })).toBe(9);
  expect(find({ KONTOR_RUNTIME: "fake", KONTOR_ALLOW_FAKE_RUNTIME: "1" })).toBeUndefined();
  expect(() => find({ KONTOR_INSTANCE: "8" })).toThrow("KONTOR_INSTANCE is 8, which is the number of");
});

test.skipIf(process.getuid?.() !== 0)("removes nothing without --yes when there is no terminal", async () => {
  const { data } = installation();
  const written = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  onTestFinished(() => written.mockRestore());
  await expect(uninstall({ data, keepSettings: true })).rejects.toThrow("--yes is needed");
  expect(written.mock.calls.flat().join("")).toContain(`the data directory ${data}`);
  expect(readdirSync(data).toSorted()).toEqual(["git", "host-id"]);
});
