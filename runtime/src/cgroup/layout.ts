/**
 * Paths and file names of this host's cgroups (cgroup-v1/*.rst and cgroup-v2.rst in the kernel's
 * documentation). Pure: text in, text out; `cgroups.ts` reads and writes the files.
 */
import { join } from "node:path";
import type { Isolation, Resources } from "../driver.ts";

/**
 * Controllers whose files the driver writes. On v1 each controller has its own tree; on v2 all controllers share one
 * tree.
 */
export const CONTROLLERS = ["memory", "cpu", "cpuacct", "pids", "freezer"] as const;
export type Controller = (typeof CONTROLLERS)[number];

export interface CgroupLayout {
  version: "v1" | "v2";
  /** Root of the tree that has each controller's files. On v2 all controllers have the same root. */
  trees: Record<Controller, string>;
  /** Every tree of the host, also an empty v2 tree: runsc and runc make a group in each of them. */
  allTrees: string[];
  /** The v2 tree, with or without controllers. Absent if v2 is not mounted. */
  unified?: string;
}

/**
 * Parses `/proc/self/mountinfo` (proc_pid_mountinfo(5)). A hybrid host has the controllers on v1 and an additional
 * empty v2 tree, so the tree with the memory controller decides. Returns undefined if the host lacks a controller that
 * machines need.
 */
export function parseLayout(mountinfo: string): CgroupLayout | undefined {
  const v1 = new Map<string, string>();
  const allV1: string[] = [];
  let v2: string | undefined;
  for (const line of mountinfo.split("\n")) {
    const [before, after] = line.split(" - ");
    const mountPoint = before?.split(" ")[4];
    const [type, , superOptions] = after?.split(" ") ?? [];
    if (mountPoint === undefined || superOptions === undefined) continue;
    if (type === "cgroup2") v2 ??= mountPoint;
    if (type !== "cgroup") continue;
    allV1.push(mountPoint);
    for (const option of superOptions.split(",")) if (!v1.has(option)) v1.set(option, mountPoint);
  }
  if (v1.has("memory")) {
    const trees = CONTROLLERS.map((controller) => [controller, v1.get(controller)] as const);
    if (trees.some(([, tree]) => tree === undefined)) return undefined;
    const allTrees = v2 === undefined ? allV1 : [...allV1, v2];
    return {
      version: "v1",
      trees: Object.fromEntries(trees) as Record<Controller, string>,
      allTrees,
      ...(v2 === undefined ? {} : { unified: v2 }),
    };
  }
  if (v2 === undefined) return undefined;
  const tree = v2;
  const trees = Object.fromEntries(CONTROLLERS.map((controller) => [controller, tree]));
  return { version: "v2", trees: trees as Record<Controller, string>, allTrees: [tree], unified: tree };
}

/**
 * A write to a cgroup file. `optional`: a kernel built without the feature lacks the file (memsw without swap
 * accounting).
 */
export interface CgroupWrite {
  path: string;
  value: string;
  optional?: true;
}

const CPU_PERIOD_US = 100_000;
/** Smallest CPU quota: the kernel refuses a quota below 1 ms. */
const MIN_CPU_QUOTA_US = 1_000;

/**
 * Returns the limit of the machine's tasks on the host. A user inside normally reaches RLIMIT_NPROC first, which
 * returns EAGAIN and leaves the machine alive. This limit stops a guest that changes its uid to start more processes. A
 * machine that reaches it ends, because the sentry cannot continue without a thread. Measured: 22 tasks with one
 * process inside, and two more for each further process.
 */
export function hostTaskLimit(maxProcesses: number): number {
  return 256 + 4 * maxProcesses;
}

const MIB = 1024 * 1024;

/**
 * Returns the memory that a gVisor machine needs in addition to its processes. The headroom covers gVisor's kernel,
 * page tables, the host's state of each process, and the allocations of a fast process before PID 1 has killed it. PID
 * 1 kills processes at the machine's size. The host kernel's limit lies above that size and kills the whole machine. A
 * native machine needs no headroom.
 */
export function headroomBytes(memoryBytes: number, isolation: Isolation): number {
  return isolation === "native" ? 0 : 256 * MIB + Math.floor(memoryBytes / 32);
}

/** Returns the writes that apply `resources`, in an order that the kernel accepts from any earlier state. */
export function limitWrites(
  layout: CgroupLayout,
  group: string,
  resources: Omit<Resources, "diskBytes">,
  isolation: Isolation,
  headroom = headroomBytes(resources.memoryBytes, isolation),
): CgroupWrite[] {
  const file = (controller: Controller, name: string) => join(layout.trees[controller], group, name);
  const quotaUs = String(Math.max(MIN_CPU_QUOTA_US, Math.round(resources.vcpus * CPU_PERIOD_US)));
  const memory = String(resources.memoryBytes + headroom);
  const tasks = String(hostTaskLimit(resources.maxProcesses));
  if (layout.version === "v2") {
    return [
      { path: file("memory", "memory.max"), value: memory },
      { path: file("memory", "memory.swap.max"), value: "0", optional: true },
      // A sentry hangs after the kill of one of its helper processes. So beyond the headroom, the kernel kills the
      // whole gVisor machine. In a native machine the kernel kills the largest process.
      {
        path: file("memory", "memory.oom.group"),
        value: isolation === "gvisor" ? "1" : "0",
        optional: true,
      },
      ...withBurst(file("cpu", "cpu.max.burst"), quotaUs, [
        { path: file("cpu", "cpu.max"), value: `${quotaUs} ${CPU_PERIOD_US}` },
      ]),
      { path: file("pids", "pids.max"), value: tasks },
    ];
  }
  return [
    // memory+swap must never be below memory: lift its limit, set memory, then set its limit again.
    { path: file("memory", "memory.memsw.limit_in_bytes"), value: "-1", optional: true },
    { path: file("memory", "memory.limit_in_bytes"), value: memory },
    { path: file("memory", "memory.memsw.limit_in_bytes"), value: memory, optional: true },
    ...withBurst(file("cpu", "cpu.cfs_burst_us"), quotaUs, [
      { path: file("cpu", "cpu.cfs_period_us"), value: String(CPU_PERIOD_US) },
      { path: file("cpu", "cpu.cfs_quota_us"), value: quotaUs },
    ]),
    { path: file("pids", "pids.max"), value: tasks },
  ];
}

/**
 * Adds a burst to the quota: a machine may use a period's unused CPU time once in the next period. Starting a process
 * keeps several of gVisor's threads busy for some milliseconds. Without the burst, a machine of one core was throttled
 * in 21 of 30 periods of short commands (p99 58 ms against 28). The kernel refuses a quota below the burst, so the
 * burst is first set to zero (sched-bwc.rst).
 */
function withBurst(path: string, quotaUs: string, quota: CgroupWrite[]): CgroupWrite[] {
  return [{ path, value: "0", optional: true }, ...quota, { path, value: quotaUs, optional: true }];
}

/** Returns the files that freeze a group, and their content once the group is frozen. */
export function freezerFiles(layout: CgroupLayout, group: string) {
  const tree = join(layout.trees.freezer, group);
  return layout.version === "v2"
    ? {
        control: join(tree, "cgroup.freeze"),
        frozen: "1",
        thawed: "0",
        state: join(tree, "cgroup.events"),
        isFrozen: /^frozen 1$/m,
      }
    : {
        control: join(tree, "freezer.state"),
        frozen: "FROZEN",
        thawed: "THAWED",
        state: join(tree, "freezer.state"),
        isFrozen: /^FROZEN$/m,
      };
}

/** Returns the value of `key` in a flat-keyed file such as memory.stat, or 0 if the key is missing. */
export function flatValue(text: string, key: string): number {
  for (const line of text.split("\n")) {
    if (line.startsWith(`${key} `)) return Number(line.slice(key.length + 1));
  }
  return 0;
}
