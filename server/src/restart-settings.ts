/**
 * Reads the settings of the last `kontor restart`. The shim holds the server's sockets and starts each server with the
 * environment of `kontor up`. A file keeps the variables that a restart changed, until the next `kontor up` removes it.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** Name of the file in the data directory: a JSON object of environment variables, mode 0600. */
const restartSettingsName = "restart-settings.json";

/** Returns the environment with the settings of the last `kontor restart`. */
export function withRestartSettings(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const data = env["KONTOR_DATA_DIR"];
  if (data === undefined) return env;
  return { ...env, ...readSettings(join(data, restartSettingsName)) };
}

function readSettings(file: string): Record<string, string> {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return {};
    throw error;
  }
  try {
    return JSON.parse(text) as Record<string, string>;
  } catch (error) {
    const cure = "remove it, and run kontor restart with its settings in the shell";
    throw new Error(`${file} is not JSON; ${cure}`, { cause: error });
  }
}
