/** A server process that executes runs and kills itself at a kill point. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Connection } from "#db/db.ts";

/**
 * Starts a server that is killed at the point. Resolves to the signal that ended the server. `key` encrypts the
 * secrets.
 */
export function runUntilKilled(connection: Connection, key: Buffer, point: string): Promise<string | null> {
  const program = fileURLToPath(new URL("../../../test/programs/carry-runs.ts", import.meta.url));
  const args = [program, JSON.stringify(connection), key.toString("hex"), point];
  return new Promise((resolve) => {
    const child = execFile(process.execPath, args, { timeout: 60_000 });
    child.on("exit", (_, signal) => resolve(signal));
  });
}
