/** Whether a PostgreSQL runs on a data directory, as its lock file and the kernel say. */
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

/** The postmaster that owns the directory, if one lives. Undefined also while one is still writing its file. */
export function findPostmaster(dataDirectory: string): Postmaster | undefined {
  try {
    const found = parsePostmasterFile(readFileSync(join(dataDirectory, "postmaster.pid"), "utf8"));
    return found && isPostmasterOf(found.pid, dataDirectory) ? found : undefined;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** A postmaster's working directory is its data directory, so a pid that now belongs to another program shows. */
export function isPostmasterOf(pid: number, dataDirectory: string): boolean {
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === realpathSync(dataDirectory) && !isZombie(pid);
  } catch {
    return false;
  }
}

/**
 * Removes a lock file whose pid is another program's by now: after a reboot, numbers repeat, and PostgreSQL refuses
 * to start while any process of its own account has the number.
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

/** Ended, but its parent has not looked: proc(5), the third field of stat, after the name in brackets. */
function isZombie(pid: number): boolean {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3) === "Z";
}
