import { expect, test } from "vitest";
import { machineLimits, ownLimits } from "./limits.ts";
import { runcArgv } from "./runc.ts";
import { nativeSpec } from "./spec.ts";
import { systemCallFilter } from "./system-calls.ts";

const input = {
  paths: {
    guestDirectory: "/run/kontor/0/m1/guest",
    root: "/run/kontor/0/m1/root",
    users: "/run/kontor/0/m1/users",
  },
  firstUser: 2 ** 24,
  guestBinary: "/opt/kontor-guest",
  resolvConf: "/state/resolv.conf",
  hostname: "box",
  cgroupsPath: "/kontor0/m1",
  architecture: "x64",
};

const specOf = (change: Partial<typeof input> = {}) =>
  nativeSpec({ ...input, ...change }) as {
    process: {
      args: string[];
      noNewPrivileges: boolean;
      capabilities: Record<string, string[]>;
    };
    hostname: string;
    mounts: { destination: string; type: string; options: string[] }[];
    linux: {
      namespaces: { type: string; path?: string }[];
      uidMappings: { hostID: number; containerID: number; size: number }[];
      resources: { devices: { allow: boolean; access: string }[] };
      maskedPaths: string[];
    };
    root: { path: string };
  };

test("gives a machine its own namespaces, and users without rights on the host", () => {
  const { linux } = specOf();
  expect(linux.namespaces.map(({ type }) => type)).toEqual(["pid", "ipc", "uts", "mount", "user"]);
  expect(linux.namespaces).toContainEqual({ type: "user", path: "/run/kontor/0/m1/users" });
  expect(linux.uidMappings).toEqual([{ containerID: 0, hostID: 2 ** 24, size: 65_536 }]);
});

test("gives the machine's root user eight capabilities, no way to gain others, and no device", () => {
  const { process, linux } = specOf();
  for (const set of ["bounding", "effective", "permitted"]) expect(process.capabilities[set]).toHaveLength(8);
  expect(process.capabilities["inheritable"]).toBeUndefined();
  expect(process.capabilities["ambient"]).toBeUndefined();
  expect(process.noNewPrivileges).toBe(true);
  expect(linux.resources.devices).toEqual([{ allow: false, access: "rwm" }]);
});

test("binds files of the host read-only", () => {
  for (const { type, options } of specOf().mounts) if (type === "bind") expect(options).toContain("ro");
});

test("sets no limit above that of this process, because runc could not raise it", () => {
  expect(machineLimits({ openFiles: 20_000, processes: 90_000 }, 200)).toEqual({
    openFiles: 20_000,
    processes: { soft: 200, hard: 1056 },
  });
  expect(machineLimits({ openFiles: Infinity, processes: 100 }, 200)).toEqual({
    openFiles: 65_536,
    processes: { soft: 100, hard: 100 },
  });
});

test("reads the hard limits of this process", () => {
  const text = [
    "Limit                     Soft Limit           Hard Limit           Units     ",
    "Max processes             96365                unlimited            processes ",
    "Max open files            1024                 20000                files     ",
  ].join("\n");
  expect(ownLimits(text)).toEqual({ openFiles: 20_000, processes: Infinity });
});

test("has no system call both allowed and refused, and allows none that mounts filesystems or makes namespaces", () => {
  const { syscalls, architectures } = systemCallFilter("arm64") as {
    architectures: string[];
    syscalls: { names: string[]; action: string; args?: { value: number; op: string }[] }[];
  };
  expect(architectures).toEqual(["SCMP_ARCH_AARCH64"]);
  const names = syscalls.flatMap(({ names, args }) => (args === undefined ? names : []));
  expect(new Set(names).size).toBe(names.length);
  const always = new Set(
    syscalls.flatMap(({ names, action, args }) =>
      action === "SCMP_ACT_ALLOW" && args === undefined ? names : [],
    ),
  );
  for (const name of "mount umount2 unshare setns clone clone3 bpf keyctl pivot_root socket io_uring_setup".split(
    " ",
  ))
    expect(always.has(name), name).toBe(false);
  expect(syscalls.find(({ names }) => names[0] === "clone")?.args).toMatchObject([
    // The bits of all new namespaces must be 0: `value` is the mask.
    { op: "SCMP_CMP_MASKED_EQ", value: 0x7e020000 },
  ]);
});

test("starts runc with the machine's own state, log and bundle", () => {
  const paths = {
    directory: "/state/machines/m1",
    log: "/state/machines/m1/engine.log",
    engineRoot: "/run/m1/runsc",
  };
  const limits = { openFiles: 20_000, processes: { soft: 200, hard: 1056 } };
  expect(runcArgv({ runc: "runc", paths, id: "m1", netnsPath: "/run/netns/kv0-3", limits })).toEqual([
    "nsenter",
    "--net=/run/netns/kv0-3",
    "prlimit",
    "--nofile=20000:20000",
    "--nproc=200:1056",
    "--core=0:0",
    "runc",
    "--root=/run/m1/runsc",
    "--log=/state/machines/m1/engine.log",
    "--log-format=json",
    "run",
    "--detach",
    "--bundle=/state/machines/m1",
    "m1",
  ]);
});
