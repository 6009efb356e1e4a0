/** Lock that allows one backup of an installation at a time. */
import { linkSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { Failure } from "../lib/failure.ts";

/** Acquires the lock, also from a dead backup. Returns a function that releases it. */
export function lockBackup(dataDir: string): () => void {
  const file = path.join(dataDir, "backup.lock");
  const aside = `${file}.tmp-${process.pid}`;
  writeFileSync(aside, identity(process.pid) ?? "", { mode: 0o600 });
  try {
    for (let attempt = 0; attempt < 2; attempt += 1) {
      try {
        // link(2) creates the complete file or fails, and never replaces another lock.
        linkSync(aside, file);
        return () => rmSync(file, { force: true });
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      }
      const holder = read(file);
      const pid = Number(holder?.split(" ")[0]);
      if (holder !== undefined && identity(pid) === holder) {
        throw new Failure(`Another backup runs (pid ${pid}).`, { hint: "Wait until it is done." });
      }
      takeAway(file, aside, holder);
    }
    throw new Failure("Another backup has just started.", { hint: "Wait until it is done." });
  } finally {
    rmSync(aside, { force: true });
  }
}

/** Removes the lock of a dead backup, unless another backup has replaced the lock since it was read. */
function takeAway(file: string, aside: string, holder: string | undefined): void {
  const dead = `${aside}.dead`;
  try {
    renameSync(file, dead);
    if (read(dead) !== holder) linkSync(dead, file);
  } catch (error) {
    if (!["ENOENT", "EEXIST"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  } finally {
    rmSync(dead, { force: true });
  }
}

/**
 * Returns text that identifies a process by pid and start time (field 22 of proc_pid_stat(5)), because pids are reused.
 * Undefined if the process does not exist.
 */
function identity(pid: number): string | undefined {
  const stat = read(`/proc/${pid}/stat`);
  const started = stat?.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
  return started === undefined ? undefined : `${pid} ${started}`;
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}
