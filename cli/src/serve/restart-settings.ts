/** What a restart hands to the server that comes up: the settings in the environment of this shell. */
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { isSetting } from "@kontor/server/config.ts";

const fileOf = (data: string): string => path.join(data, "restart-settings.json");

/**
 * Settings of this shell hold from the next start on, and those of earlier restarts that it does not name stay. The
 * data directory is where the file is found, and never in it.
 */
export function writeRestartSettings(data: string, env: NodeJS.ProcessEnv = process.env): void {
  const own = Object.entries(env).filter(([name]) => isSetting(name) && name !== "KONTOR_DATA_DIR");
  if (own.length === 0) return;
  const next = `${fileOf(data)}.next`;
  const settings = { ...readRestartSettings(data), ...Object.fromEntries(own) };
  writeFileSync(next, `${JSON.stringify(settings, null, 2)}\n`, { mode: 0o600 });
  renameSync(next, fileOf(data));
}

/** Before a start by `kontor up`, whose own environment is all that counts. */
export function forgetRestartSettings(data: string): void {
  rmSync(fileOf(data), { force: true });
}

function readRestartSettings(data: string): Record<string, string> {
  try {
    return JSON.parse(readFileSync(fileOf(data), "utf8")) as Record<string, string>;
  } catch {
    return {};
  }
}
