/**
 * The OCI spec (config.json) of a native machine, computed without side effects. The shim has already
 * assembled the root, with `/sys` and the volume, and made the user namespace. The spec names no network
 * namespace, because a process in the user namespace could not enter it. runc is started in that namespace,
 * under the machine's limits (limits.ts).
 */
import { GUEST_ARGV, kontorMounts, type KontorFiles } from "../linux/kontor-mounts.ts";
import type { MachinePaths } from "../linux/paths.ts";
import { systemCallFilter } from "./system-calls.ts";
import { USERS } from "./users.ts";

export interface NativeSpecInput extends KontorFiles {
  paths: Pick<MachinePaths, "guestDirectory" | "root" | "users">;
  /** User of the host that is root inside, as the namespace at `paths.users` maps it. */
  firstUser: number;
  hostname: string;
  cgroupsPath: string;
  /** Name of the architecture in Node. */
  architecture: string;
}

/**
 * Capabilities of the machine's root user: enough to install packages, serve low ports and become another user. They
 * apply only to files and processes of the machine's own users.
 */
const CAPABILITIES = [
  "CHOWN",
  "DAC_OVERRIDE",
  "FOWNER",
  "FSETID",
  "KILL",
  "NET_BIND_SERVICE",
  "SETGID",
  "SETUID",
].map((name) => `CAP_${name}`);

/**
 * Score of all processes except PID 1. When the machine's memory is used up, the kernel then kills another process, and
 * PID 1 reports that kill. The score adds half of the memory to the size of each process. Programs may lower their
 * score to zero, and are then still larger than PID 1.
 */
const OOM_SCORE_OF_CHILDREN = "500";

/** Files that reveal something about the host, or could be used against it. */
const MASKED = [
  "/proc/acpi",
  "/proc/asound",
  "/proc/interrupts",
  "/proc/kcore",
  "/proc/keys",
  "/proc/latency_stats",
  "/proc/sched_debug",
  "/proc/scsi",
  "/proc/timer_list",
  "/proc/timer_stats",
  "/sys/devices/virtual/powercap",
  "/sys/firmware",
  "/sys/fs/selinux",
];
const READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

export function nativeSpec(input: NativeSpecInput): Record<string, unknown> {
  const mapping = [{ containerID: 0, hostID: input.firstUser, size: USERS }];
  return {
    ociVersion: "1.0.2",
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args: [...GUEST_ARGV, OOM_SCORE_OF_CHILDREN],
      cwd: "/",
      env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
      capabilities: { bounding: CAPABILITIES, effective: CAPABILITIES, permitted: CAPABILITIES },
      noNewPrivileges: true,
    },
    root: { path: input.paths.root, readonly: false },
    hostname: input.hostname,
    mounts: [
      mount("/proc", "proc", ["nosuid", "noexec", "nodev"]),
      mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=64k"]),
      mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
      mount("/dev/shm", "tmpfs", ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]),
      mount("/dev/mqueue", "mqueue", ["nosuid", "noexec", "nodev"]),
      ...kontorMounts(input),
    ],
    linux: {
      namespaces: [
        { type: "pid" },
        { type: "ipc" },
        { type: "uts" },
        { type: "mount" },
        { type: "user", path: input.paths.users },
      ],
      uidMappings: mapping,
      gidMappings: mapping,
      cgroupsPath: input.cgroupsPath,
      // The control group has the limits of memory, processors and tasks already, and runc leaves them
      // unchanged.
      resources: { devices: [{ allow: false, access: "rwm" }] },
      seccomp: systemCallFilter(input.architecture),
      maskedPaths: MASKED,
      readonlyPaths: READ_ONLY,
    },
  };
}

function mount(destination: string, type: string, options: string[]) {
  return { destination, type, source: type, options };
}
