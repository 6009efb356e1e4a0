/**
 * The OCI spec (config.json) of a machine, computed without side effects. The root filesystem is the image's
 * own directory, shared and read-only. gVisor lays the machine's writable layer over it.
 */
import { bind, GUEST_ARGV, kontorMounts, VOLUME, type KontorFiles } from "../linux/kontor-mounts.ts";
import type { MachinePaths } from "../linux/paths.ts";

export interface SpecInput extends KontorFiles {
  paths: Pick<MachinePaths, "guestDirectory" | "volume">;
  rootfs: string;
  hostname: string;
  netnsPath: string;
  cgroupsPath: string;
  maxProcesses: number;
  /** Size of /dev/shm in bytes. Unlimited if undefined, as in checkpoints of older servers. */
  sharedMemoryBytes: number | undefined;
  hasVolume: boolean;
}

/**
 * Limit of open files, counted by gVisor alone. The sentry's own descriptors on the host are subject to the host's
 * limit.
 */
const MAX_OPEN_FILES = 65_536;

/** Docker's default capabilities, which images expect. These are rights in gVisor's own kernel, not on the host. */
const CAPABILITIES = [
  "AUDIT_WRITE",
  "CHOWN",
  "DAC_OVERRIDE",
  "FOWNER",
  "FSETID",
  "KILL",
  "MKNOD",
  "NET_BIND_SERVICE",
  "NET_RAW",
  "SETFCAP",
  "SETGID",
  "SETPCAP",
  "SETUID",
  "SYS_CHROOT",
  "SYS_PTRACE",
].map((name) => `CAP_${name}`);

/**
 * PID 1 sets the hostname at a claim, which needs SYS_ADMIN. The capability is outside the bounding set, so that no
 * program that PID 1 starts has it (capabilities(7), "during execve"). RLIMIT_NPROC does not limit a process with this
 * capability.
 */
const CAPABILITIES_OF_PID_1 = [...CAPABILITIES, "CAP_SYS_ADMIN"];

export function ociSpec(input: SpecInput): Record<string, unknown> {
  const limit = (type: string, value: number) => ({ type, soft: value, hard: value });
  return {
    ociVersion: "1.0.2",
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args: GUEST_ARGV,
      cwd: "/",
      env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
      capabilities: {
        bounding: CAPABILITIES,
        effective: CAPABILITIES_OF_PID_1,
        permitted: CAPABILITIES_OF_PID_1,
      },
      rlimits: [
        limit("RLIMIT_NOFILE", MAX_OPEN_FILES),
        // Stops a fork bomb with EAGAIN. gVisor counts processes per user, as Linux does.
        limit("RLIMIT_NPROC", input.maxProcesses),
        limit("RLIMIT_CORE", 0),
      ],
    },
    root: { path: input.rootfs, readonly: false },
    hostname: input.hostname,
    mounts: [
      { destination: "/proc", type: "proc", source: "proc", options: ["nosuid", "noexec", "nodev"] },
      { destination: "/dev", type: "tmpfs", source: "tmpfs", options: ["nosuid", "mode=755"] },
      { destination: "/dev/pts", type: "devpts", source: "devpts", options: ["nosuid", "noexec"] },
      {
        destination: "/dev/shm",
        type: "tmpfs",
        source: "shm",
        options: ["nosuid", "nodev", "mode=1777", ...sizeOption(input.sharedMemoryBytes)],
      },
      { destination: "/sys", type: "sysfs", source: "sysfs", options: ["nosuid", "noexec", "nodev", "ro"] },
      ...kontorMounts(input),
      ...(input.hasVolume ? [bind(input.paths.volume, VOLUME, "rw")] : []),
    ],
    linux: {
      namespaces: [
        { type: "pid" },
        { type: "ipc" },
        { type: "uts" },
        { type: "mount" },
        // The namespace is always named by path: without a path, runsc would use the host's network.
        { type: "network", path: input.netnsPath },
      ],
      cgroupsPath: input.cgroupsPath,
    },
  };
}

function sizeOption(bytes: number | undefined): string[] {
  return bytes === undefined ? [] : [`size=${bytes}`];
}
