/** Processes of machines as the host sees them, for tests that kill a process like the kernel, or inspect a machine. */
import { readdirSync, readFileSync } from "node:fs";

/** Returns the pid on this host of the process that runs `program` in a machine. */
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
