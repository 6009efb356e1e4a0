/** Programs run inside a database's machine, to their end: what they say is bounded, and so is how long they may take. */
import { basename } from "node:path";
import type { Guest } from "#machines/host/guest.ts";
import { EngineFailure } from "../errors.ts";

/** More than any program of ours says. */
const keptBytes = 64 * 1024;

export interface Run {
  argv: string[];
  user?: string;
  stdin?: string;
  timeoutMs: number;
}

/** What it wrote to stdout. Fails with an `EngineFailure` that holds the last of what it wrote to stderr. */
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
    const said = { stdout: "", stderr: "" };
    for await (const { stream, data } of child.output) {
      said[stream] = (said[stream] + data.toString("utf8")).slice(-keptBytes);
    }
    const { code, signal, timedOut } = await child.exit;
    if (code === 0) return said.stdout;
    const last = said.stderr.trim().split("\n").slice(-3).join(" ").slice(-500);
    const how = timedOut
      ? `took longer than ${timeoutMs / 1000} s`
      : `ended with ${code ?? `signal ${signal}`}`;
    throw new EngineFailure(`${programOf(argv)} ${how}${last === "" ? "" : `: ${last}`}`);
  } finally {
    child.close();
  }
}

/** Arguments may be anything. */
function programOf([program = "", script]: readonly string[]): string {
  return basename(program === "/bin/sh" && script !== undefined ? script : program);
}
