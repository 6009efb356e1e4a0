/** What processes use, from /proc (proc(5)): the server's own, and those of its PostgreSQL. */
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** The server and every process of the embedded PostgreSQL of a data directory. */
export function serverProcesses(
  serverPid: number,
  dataDirectory: string,
): { server: number; postgres: number[] } {
  const lockFile = join(dataDirectory, "postgres", "data", "postmaster.pid");
  const postmaster = Number.parseInt(readFileSync(lockFile, "utf8"), 10);
  return { server: serverPid, postgres: [postmaster, ...childrenOf(postmaster)] };
}

function childrenOf(parent: number): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => statFields(pid)?.[1] === String(parent));
}

/** Memory that would come free if these processes ended: what they share is counted once (PSS). */
export function proportionalBytes(pids: readonly number[]): number {
  const kilobytes = pids.map((pid) => {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
    return Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0);
  });
  return kilobytes.reduce((sum, one) => sum + one, 0) * 1024;
}

/** USER_HZ is 100 on every Linux that Node runs on. */
const tickSeconds = 0.01;

/** CPU time these processes have used so far. One that came and went between two readings is not seen. */
export function cpuSeconds(pids: readonly number[]): number {
  const ticks = pids.map((pid) => {
    const fields = statFields(pid);
    return fields ? Number(fields[11]) + Number(fields[12]) : 0;
  });
  return ticks.reduce((sum, one) => sum + one, 0) * tickSeconds;
}

/** The fields of /proc/<pid>/stat from the state on: parent is at 1, utime at 11, stime at 12. Undefined where it ended. */
function statFields(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The command may hold spaces and brackets; the state follows the last bracket.
    return text.slice(text.lastIndexOf(")") + 2).split(" ");
  } catch {
    return undefined;
  }
}
