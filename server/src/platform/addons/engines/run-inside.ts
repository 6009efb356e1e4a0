/** Runs programs in a database's machine to their end, with bounded output and time. */
import { basename } from "node:path";
import type { Guest } from "#machines/host/guest.ts";
import { EngineFailure } from "../errors.ts";

/** Limit of kept output in bytes, above the output of any of our programs. */
const keptBytes = 64 * 1024;

export interface Run {
  argv: string[];
  user?: string;
  stdin?: string;
  timeoutMs: number;
}

/** Runs the program and returns its stdout. Rejects with an `EngineFailure` that contains the last line of stderr. */
export async function runInside(guest: Guest, { argv, user, stdin, timeoutMs }: Run): Promise<string> {
  const child = await guest.spawn({
    argv,
    cwd: "/",
    timeoutMs,
    onDisconnect: "kill",
    ...(user === undefined ? {} : { user }),
  });
  try {
    if (stdin !== undefined) await child.writeStdin(Buffer.from(stdin));
    child.endStdin();
    const output = { stdout: "", stderr: "" };
    for await (const { stream, data } of child.output) {
      output[stream] = (output[stream] + data.toString("utf8")).slice(-keptBytes);
    }
    const { code, signal, timedOut } = await child.exit;
    if (code === 0) return output.stdout;
    const last = output.stderr.trim().split("\n").slice(-3).join(" ").slice(-500);
    const how = timedOut
      ? `took longer than ${timeoutMs / 1000} s`
      : `ended with ${code ?? `signal ${signal}`}`;
    throw new EngineFailure(`${programOf(argv)} ${how}${last === "" ? "" : `: ${last}`}`);
  } finally {
    child.close();
  }
}

/** Returns the program's name without its arguments, which may contain secrets. */
function programOf([program = "", script]: readonly string[]): string {
  return basename(program === "/bin/sh" && script !== undefined ? script : program);
}
