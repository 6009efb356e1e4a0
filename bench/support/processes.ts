/** CPU time and memory of processes from /proc (proc(5)): the server's processes, and those of its PostgreSQL. */
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** Returns the pid of the postmaster of a data directory's embedded PostgreSQL. */
export function postmasterOf(dataDirectory: string): number {
  return Number.parseInt(readFileSync(join(dataDirectory, "postgres", "data", "postmaster.pid"), "utf8"), 10);
}

/** Returns the process and its current children: PostgreSQL has a child for each connection. */
export function withChildren(parent: number): number[] {
  const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  return [parent, ...all.map(Number).filter((pid) => statFields(pid)?.[1] === String(parent))];
}

/** Returns the memory in bytes that would be free if these processes ended. Shared memory counts once (PSS). */
export function proportionalBytes(pids: readonly number[]): number {
  const kilobytes = pids.map((pid) => {
    const text = read(`/proc/${pid}/smaps_rollup`);
    return Number(/^Pss:\s+(\d+) kB$/m.exec(text)?.[1] ?? 0);
  });
  return kilobytes.reduce((sum, one) => sum + one, 0) * 1024;
}

/** Length of a clock tick: USER_HZ is 100 on every Linux that Node runs on. */
const tickSeconds = 0.01;
const cpuFields = { own: [11, 12], withEndedChildren: [11, 12, 13, 14] } as const;

/**
 * Returns the CPU time of a process so far, in seconds. With `children`, includes its children, also ended children.
 */
export function cpuSeconds(pid: number, options: { children?: boolean } = {}): number {
  if (!options.children) return ticks(pid, cpuFields.own) * tickSeconds;
  const [parent = pid, ...children] = withChildren(pid);
  const alive = children.reduce((sum, child) => sum + ticks(child, cpuFields.own), 0);
  return (ticks(parent, cpuFields.withEndedChildren) + alive) * tickSeconds;
}

function ticks(pid: number, fields: readonly number[]): number {
  const stat = statFields(pid);
  return fields.reduce((sum, field) => sum + Number(stat?.[field] ?? 0), 0);
}

/**
 * Returns the fields of /proc/<pid>/stat from the state on: the parent is at 1, utime at 11. Undefined if the process
 * has ended.
 */
function statFields(pid: number): string[] | undefined {
  const text = read(`/proc/${pid}/stat`);
  // The command name may contain spaces and brackets; the state follows the last bracket.
  return text === "" ? undefined : text.slice(text.lastIndexOf(")") + 2).split(" ");
}

function read(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return "";
  }
}
