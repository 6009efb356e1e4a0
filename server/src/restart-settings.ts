/**
 * Settings that `kontor restart` was given. The process that keeps the server's sockets has the environment of
 * `kontor up` and starts every later server with it; what the shell of a restart says otherwise is in this file, until
 * the next `kontor up` removes it.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** In the data directory, mode 0600: a JSON object of environment variables. */
export const restartSettingsName = "restart-settings.json";

/** The environment with the settings of the last `kontor restart`. */
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
  return JSON.parse(text) as Record<string, string>;
}
