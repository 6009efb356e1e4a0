/** Stores the settings of the shell that restarts a server, for the servers that start after it. */
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { isSetting } from "@kontor/server/config.ts";

const fileOf = (data: string): string => path.join(data, "restart-settings.json");

/**
 * Merges this shell's settings into those of earlier restarts. The merged settings apply from the next start on.
 * KONTOR_DATA_DIR is left out, because it determines the path of the file.
 */
export function writeRestartSettings(data: string, env: NodeJS.ProcessEnv = process.env): void {
  const own = Object.entries(env).filter(([name]) => isSetting(name) && name !== "KONTOR_DATA_DIR");
  if (own.length === 0) return;
  const next = `${fileOf(data)}.next`;
  const settings = { ...readRestartSettings(data), ...Object.fromEntries(own) };
  writeFileSync(next, `${JSON.stringify(settings, null, 2)}\n`, { mode: 0o600 });
  renameSync(next, fileOf(data));
}

/** Removes the file before `kontor up`, which uses only its own environment. */
export function forgetRestartSettings(data: string): void {
  rmSync(fileOf(data), { force: true });
}

/** Returns the settings of earlier restarts. Empty if there are none. */
export function readRestartSettings(data: string): Record<string, string> {
  try {
    return JSON.parse(readFileSync(fileOf(data), "utf8")) as Record<string, string>;
  } catch {
    return {};
  }
}
