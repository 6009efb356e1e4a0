/**
 * Finds processes that a suite left running. Each suite has a mark in its environment, which its children inherit. A
 * process with the mark is an orphan once the suite has ended.
 */
import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";

export interface Leftover {
  pid: number;
  /** The first 200 characters of the command line. */
  command: string;
}

const variable = "TEST_SUITE_MARK";

export type Mark = Record<typeof variable, string>;

/** Creates the mark of one suite. The name does not begin with KONTOR_, because the server refuses unknown settings. */
export const createMark = (): Mark => ({ [variable]: randomUUID() });

/** Kills every process with the mark, and returns them. */
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

/** Reads a file of a process. Empty if the process has ended or belongs to another user. */
function read(pid: string, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "latin1");
  } catch {
    return "";
  }
}
