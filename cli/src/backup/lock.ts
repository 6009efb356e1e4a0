/** One backup of an installation at a time. */
import { linkSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { Failure } from "../lib/failure.ts";

/** Takes the lock, also from a backup that died; returns what gives it back. */
export function lockBackup(dataDir: string): () => void {
  const file = path.join(dataDir, "backup.lock");
  const aside = `${file}.tmp-${process.pid}`;
  writeFileSync(aside, identity(process.pid) ?? "", { mode: 0o600 });
  try {
    for (let attempt = 0; attempt < 2; attempt += 1) {
      try {
        // Whole or not there, and never over another's.
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
      rmSync(file, { force: true });
    }
    throw new Failure("Another backup has just begun.", { hint: "Wait until it is done." });
  } finally {
    rmSync(aside, { force: true });
  }
}

/** A process by its number and start time, field 22 of proc_pid_stat(5): numbers are given out again. */
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
