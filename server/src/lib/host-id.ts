/**
 * The name of this host. The first start generates it and keeps it in the data directory, so that it survives a new
 * address or host name.
 */
import { linkSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { newId } from "./ids.ts";

export function ensureHostId(dataDir: string): string {
  const file = join(dataDir, "host-id");
  try {
    return readFileSync(file, "utf8").trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
  }
  const aside = `${file}.tmp-${process.pid}`;
  writeFileSync(aside, `${newId("host_")}\n`);
  try {
    linkSync(aside, file);
  } catch (error) {
    // Another process created the file at the same moment, so the name in that file is used.
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  } finally {
    rmSync(aside, { force: true });
  }
  return readFileSync(file, "utf8").trim();
}
