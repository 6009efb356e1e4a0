/** A server process that carries out runs and is killed on its way. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Connection } from "#db/db.ts";

/** Killed at the point; resolves, when it is gone, with the signal that ended it. `key` is of the secrets' box. */
export function killedAt(connection: Connection, key: Buffer, point: string): Promise<string | null> {
  const program = fileURLToPath(new URL("../../../test/programs/carry-runs.ts", import.meta.url));
  const args = [program, JSON.stringify(connection), key.toString("hex"), point];
  return new Promise((resolve) => {
    const child = execFile(process.execPath, args, { timeout: 60_000 });
    child.on("exit", (_, signal) => resolve(signal));
  });
}
