/** Small files in the data directory that other programs read: whole or not there, never half. */
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from "node:fs";

/** Replaces the file in one step; it is on disk when this returns. `mode` holds from its first byte on. */
export function writeStateFile(path: string, value: unknown, mode: number): void {
  writeFileWhole(path, `${JSON.stringify(value, null, 2)}\n`, mode);
}

/** The same of a text. */
export function writeFileWhole(path: string, content: string, mode: number): void {
  const aside = `${path}.tmp-${process.pid}`;
  rmSync(aside, { force: true });
  const file = openSync(aside, "wx", mode);
  try {
    writeFileSync(file, content);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(aside, path);
}
