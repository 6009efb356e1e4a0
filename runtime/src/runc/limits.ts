/**
 * Resource limits (setrlimit(2)) of a native machine's processes. runc is started under them and its children
 * inherit them.
 */
import { hostTaskLimit } from "../cgroup/layout.ts";

/** Hard limits of this process, the most that it can pass on: raising a limit needs CAP_SYS_RESOURCE. */
export interface OwnLimits {
  openFiles: number;
  processes: number;
}

export interface MachineLimits {
  openFiles: number;
  processes: { soft: number; hard: number };
}

const MAX_OPEN_FILES = 65_536;

export function machineLimits(own: OwnLimits, maxProcesses: number): MachineLimits {
  const hard = Math.min(own.processes, hostTaskLimit(maxProcesses));
  // The soft limit stops a fork bomb with EAGAIN, and the machine survives, because PID 1 has the hard limit. Both
  // limits count for each user of the namespace; the control group's limit is the backstop.
  return {
    openFiles: Math.min(own.openFiles, MAX_OPEN_FILES),
    processes: { soft: Math.min(maxProcesses, hard), hard },
  };
}

/** Parses the hard limits in `/proc/self/limits` (proc_pid_limits(5)). An unlimited value is Infinity. */
export function ownLimits(text: string): OwnLimits {
  const hard = (name: string) => {
    const value = new RegExp(`^${name} +\\S+ +(\\S+)`, "m").exec(text)?.[1];
    return value === undefined || value === "unlimited" ? Infinity : Number(value);
  };
  return { openFiles: hard("Max open files"), processes: hard("Max processes") };
}
