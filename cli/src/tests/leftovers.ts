/**
 * Processes that a suite left running. Each suite runs with a mark in its environment, which its children inherit; a
 * process that wears the mark after the suite has ended belongs to no one.
 */
import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";

export interface Leftover {
  pid: number;
  /** Its command line, the first 200 characters. */
  command: string;
}

const variable = "TEST_SUITE_MARK";

export type Mark = Record<typeof variable, string>;

/** A mark of its own for one suite. Not named KONTOR_…: the server refuses a setting that it does not know. */
export const marked = (): Mark => ({ [variable]: randomUUID() });

/** Kills every process that wears the mark, and answers which they were. */
export function endLeftovers(mark: Mark): Leftover[] {
  const worn = `${variable}=${mark[variable]}`;
  return readdirSync("/proc")
    .filter((name) => /^[0-9]+$/.test(name) && Number(name) !== process.pid)
    .flatMap((name) => {
      if (!read(name, "environ").split("\0").includes(worn)) return [];
      const command = read(name, "cmdline").replaceAll("\0", " ").trim().slice(0, 200);
      try {
        process.kill(Number(name), "SIGKILL");
      } catch {
        return [];
      }
      return [{ pid: Number(name), command }];
    });
}

/** A file of a process; empty where the process has ended or belongs to another person. */
function read(pid: string, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch {
    return "";
  }
}
