/** Checks whether a PostgreSQL runs on a data directory, by its lock file and the kernel. */
import { readFileSync, readlinkSync, realpathSync, rmSync } from "node:fs";
import { join } from "node:path";

export interface Postmaster {
  pid: number;
  socketDirectory: string;
}

/** The lines of postmaster.pid: pid, directory, start time, port, socket directory, listen address, memory, status. */
export function parsePostmasterFile(content: string): Postmaster | undefined {
  const [pid, , , , socketDirectory] = content.split("\n");
  if (!pid || !/^\d+$/.test(pid) || !socketDirectory) return undefined;
  return { pid: Number(pid), socketDirectory };
}

/** Returns the running postmaster of the directory. Undefined if there is none, or it is still writing its file. */
export function findPostmaster(dataDirectory: string): Postmaster | undefined {
  try {
    const found = parsePostmasterFile(readFileSync(join(dataDirectory, "postmaster.pid"), "utf8"));
    return found && isPostmasterOf(found.pid, dataDirectory) ? found : undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** A postmaster's working directory is its data directory, which exposes a pid that another program has now. */
export function isPostmasterOf(pid: number, dataDirectory: string): boolean {
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === realpathSync(dataDirectory) && !isZombie(pid);
  } catch {
    return false;
  }
}

/**
 * Removes a lock file whose pid belongs to another program. Pids repeat after a reboot, and PostgreSQL refuses to start
 * while any process of its account has this pid.
 */
export function removeForeignLock(dataDirectory: string): void {
  const file = join(dataDirectory, "postmaster.pid");
  let pid: number;
  try {
    pid = Number.parseInt(readFileSync(file, "utf8"), 10);
  } catch {
    return;
  }
  const isAlive = Number.isInteger(pid) && pid > 0 && exists(pid);
  if (isAlive && !isPostmasterOf(pid, dataDirectory)) rmSync(file, { force: true });
}

export function exists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/**
 * True for a process that has ended but was not yet reaped. The third field of stat in proc(5), after the name in
 * brackets, shows this.
 */
function isZombie(pid: number): boolean {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3) === "Z";
}
