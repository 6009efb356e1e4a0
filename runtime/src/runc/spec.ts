/**
 * The OCI spec (config.json) of a native machine: a value computed from a value. `/sys` and the volume are in its root
 * already, which the shim put together.
 */
import { hostTaskLimit } from "../cgroup/layout.ts";
import { GUEST_ARGV, ourMounts, type OurFiles } from "../linux/inside.ts";
import type { MachinePaths } from "../linux/paths.ts";
import { systemCallFilter } from "./system-calls.ts";
import { FIRST_USER, USERS } from "./users.ts";

export interface NativeSpecInput extends OurFiles {
  paths: Pick<MachinePaths, "guestDirectory" | "root">;
  hostname: string;
  netnsPath: string;
  cgroupsPath: string;
  maxProcesses: number;
  limits: OwnLimits;
  /** Node's word for it. */
  architecture: string;
}

/** What this process may have at most, and so what it may give: raising a limit takes CAP_SYS_RESOURCE. */
export interface OwnLimits {
  openFiles: number;
  processes: number;
}

const MAX_OPEN_FILES = 65_536;

/** Enough to install packages, serve low ports and become another user; over files and processes of its own users only. */
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
 * What the kernel should kill first when the machine's memory is used up: anything but PID 1, which says how it ended.
 * A thousandth of the memory each; programs may lower it, and are then still larger than PID 1.
 */
const OOM_SCORE_OF_CHILDREN = "500";

/** What says something of the host, or could be used against it. */
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
  const limit = (type: string, soft: number, hard = soft) => ({ type, soft, hard });
  const mapping = [{ containerID: 0, hostID: FIRST_USER, size: USERS }];
  const openFiles = Math.min(input.limits.openFiles, MAX_OPEN_FILES);
  const processes = Math.min(input.limits.processes, hostTaskLimit(input.maxProcesses));
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
      rlimits: [
        limit("RLIMIT_NOFILE", openFiles),
        // The soft one stops a fork bomb: EAGAIN inside and the machine lives, for PID 1 has the hard one. Counted for
        // each user of the namespace; the control group's is the fence behind it.
        limit("RLIMIT_NPROC", Math.min(input.maxProcesses, processes), processes),
        limit("RLIMIT_CORE", 0),
      ],
    },
    root: { path: input.paths.root, readonly: false },
    hostname: input.hostname,
    mounts: [
      mount("/proc", "proc", ["nosuid", "noexec", "nodev"]),
      mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=64k"]),
      mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
      mount("/dev/shm", "tmpfs", ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]),
      mount("/dev/mqueue", "mqueue", ["nosuid", "noexec", "nodev"]),
      ...ourMounts(input),
    ],
    linux: {
      namespaces: [
        { type: "pid" },
        { type: "ipc" },
        { type: "uts" },
        { type: "mount" },
        { type: "user" },
        { type: "network", path: input.netnsPath },
      ],
      uidMappings: mapping,
      gidMappings: mapping,
      cgroupsPath: input.cgroupsPath,
      // Limits of memory, processors and tasks are in the group already, and runc leaves them as they are.
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

/** Of `/proc/self/limits` (proc_pid_limits(5)): the hard ones, Infinity where there is none. */
export function ownLimits(text: string): OwnLimits {
  const hard = (name: string) => {
    const value = new RegExp(`^${name} +\\S+ +(\\S+)`, "m").exec(text)?.[1];
    return value === undefined || value === "unlimited" ? Infinity : Number(value);
  };
  return { openFiles: hard("Max open files"), processes: hard("Max processes") };
}
