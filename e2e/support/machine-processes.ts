/** Processes of machines as the host sees them, to kill one like the kernel, or to inspect a machine. */
import { readdirSync, readFileSync } from "node:fs";

/** Pid on this host of the process that runs `program` in a machine. */
export function processIn(machine: string, program: string): number {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const found = pids.find((pid) => {
    try {
      return (
        readFileSync(`/proc/${pid}/cgroup`, "utf8").includes(machine) &&
        readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith(program)
      );
    } catch {
      return false;
    }
  });
  if (found === undefined) throw new Error(`no ${program} runs in ${machine}`);
  return Number(found);
}
