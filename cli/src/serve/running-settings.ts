/**
 * Settings of the server that runs on a data directory. A command beside the server uses that server's database and
 * volumes, whatever variables its own shell has.
 */
import { readFileSync } from "node:fs";
import { isSetting } from "@kontor/server/config.ts";
import { Failure } from "../lib/failure.ts";
import { readRestartSettings } from "./restart-settings.ts";
import { findRunning } from "./server-file.ts";

/**
 * Returns `env` with the settings of the running server in place of its own settings, or `env` itself if no server
 * runs.
 */
export function withRunningSettings(data: string, env: NodeJS.ProcessEnv = process.env): NodeJS.ProcessEnv {
  const running = findRunning(data);
  if (!running) return env;
  const others = Object.entries(env).filter(([name]) => !isSetting(name));
  const settings = { ...environmentOf(running.pid), ...readRestartSettings(data), KONTOR_DATA_DIR: data };
  return { ...Object.fromEntries(others), ...settings };
}

/** Returns the settings in the environment with which a process was started (proc_pid_environ(5)). */
function environmentOf(pid: number): Record<string, string> {
  const pairs = readEnvironment(pid)
    .split("\0")
    .map((line): [string, string] => {
      const at = line.indexOf("=");
      return [line.slice(0, at), line.slice(at + 1)];
    });
  return Object.fromEntries(pairs.filter(([name]) => isSetting(name)));
}

function readEnvironment(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // The process has ended since it was found.
    if (code === "ENOENT" || code === "ESRCH") return "";
    throw new Failure(`The settings of the server (pid ${pid}) cannot be read.`, {
      hint: "Run the command as root, or as the server's account.",
    });
  }
}
