/** Small files in the data directory that other programs read. A reader finds the whole file or none. */
import { closeSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from "node:fs";

/** Replaces the file atomically, and syncs it to disk before it returns. `mode` holds from the first byte on. */
export function writeStateFile(path: string, value: unknown, mode: number): void {
  writeFileWhole(path, `${JSON.stringify(value, null, 2)}\n`, mode);
}

/** Replaces the file by a text in the same way as `writeStateFile`. */
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
