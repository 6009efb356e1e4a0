import { expect, test } from "vitest";
import { ociSpec } from "./spec.ts";

const input = {
  paths: { guestDirectory: "/run/kontor/0/m1/guest", volume: "/state/machines/m1/volume" },
  rootfs: "/images/debian/rootfs",
  guestBinary: "/opt/kontor-guest",
  resolvConf: "/state/resolv.conf",
  hostname: "box",
  netnsPath: "/run/netns/kv0-3",
  cgroupsPath: "/kontor0/m1",
  maxProcesses: 200,
  sharedMemoryBytes: 1000,
  hasVolume: false,
};

const spec = ociSpec(input) as {
  process: {
    args: string[];
    capabilities: Record<string, string[]>;
    rlimits: { type: string; hard: number; soft: number }[];
  };
  mounts: { destination: string; type: string; source: string; options: string[] }[];
  linux: { namespaces: { type: string; path?: string }[]; cgroupsPath: string };
  root: { path: string };
};

test("names the machine's network namespace by path, so it never starts in the host's network", () => {
  expect(spec.linux.namespaces).toContainEqual({ type: "network", path: "/run/netns/kv0-3" });
});

test("binds files of the host read-only", () => {
  const bound = spec.mounts.filter(({ type }) => type === "bind");
  expect(bound.map(({ source, destination }) => [source, destination])).toEqual([
    ["/opt/kontor-guest", "/.kontor/guest"],
    ["/run/kontor/0/m1/guest", "/.kontor/run"],
    ["/state/resolv.conf", "/etc/resolv.conf"],
  ]);
  for (const { options } of bound) expect(options).toEqual(["bind", "ro", "nosuid"]);
});

test("lets a machine write to no file of the host except its volume", () => {
  const withVolume = ociSpec({ ...input, hasVolume: true }) as typeof spec;
  expect(withVolume.mounts.filter(({ options }) => options.includes("rw"))).toEqual([
    {
      destination: "/persist",
      type: "bind",
      source: "/state/machines/m1/volume",
      options: ["bind", "rw", "nosuid"],
    },
  ]);
});

test("limits /dev/shm, except in the restore of a checkpoint without a limit", () => {
  const optionsOf = (sharedMemoryBytes: number | undefined) =>
    (ociSpec({ ...input, sharedMemoryBytes }) as typeof spec).mounts.find(
      ({ destination }) => destination === "/dev/shm",
    )?.options;
  expect(optionsOf(1000)).toEqual(["nosuid", "nodev", "mode=1777", "size=1000"]);
  expect(optionsOf(undefined)).toEqual(["nosuid", "nodev", "mode=1777"]);
});

test("gives SYS_ADMIN to no program that PID 1 starts", () => {
  expect(spec.process.capabilities["effective"]).toContain("CAP_SYS_ADMIN");
  expect(spec.process.capabilities["bounding"]).not.toContain("CAP_SYS_ADMIN");
  expect(spec.process.capabilities["bounding"]).not.toContain("CAP_SYS_RESOURCE");
});

test("uses the given limits, program, control group and root filesystem", () => {
  expect(spec.process.rlimits).toContainEqual({ type: "RLIMIT_NPROC", soft: 200, hard: 200 });
  expect(spec.process.args).toEqual(["/.kontor/guest", "/.kontor/run/guest.sock"]);
  expect(spec.linux.cgroupsPath).toBe("/kontor0/m1");
  expect(spec.root.path).toBe("/images/debian/rootfs");
});
