/**
 * Guest programs of this host. Each build has its own file, which is kept forever. A machine's PID 1 is
 * mapped from its file while the machine lives, and a checkpoint restores only onto the same file. So a
 * server with a newer guest program must keep the older ones for running and paused machines.
 */
import { createHash } from "node:crypto";
import { chmod, mkdir, readFile, rename, stat, utimes, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { RuntimeError } from "../driver.ts";

/**
 * Modification time of every build. gVisor also compares these times, so a build must have the same time on every host.
 */
const NO_TIME = new Date(0);

/** Keeps a copy of the program unless one exists. Returns the name of the build. */
export async function keepGuest(directory: string, program: string): Promise<string> {
  const bytes = await readFile(program).catch((error: unknown) => {
    throw new RuntimeError("failed", "the guest program is missing; build it with `make -C guest`", {
      cause: error,
    });
  });
  const build = createHash("sha256").update(bytes).digest("hex").slice(0, 16);
  const path = guestPath(directory, build);
  if ((await stat(path).catch(() => undefined))?.size === bytes.length) return build;
  await mkdir(dirname(path), { recursive: true, mode: 0o755 });
  await writeFile(`${path}.new`, bytes, { mode: 0o755 });
  await chmod(`${path}.new`, 0o755);
  await utimes(`${path}.new`, NO_TIME, NO_TIME);
  await rename(`${path}.new`, path);
  return build;
}

export function guestPath(directory: string, build: string): string {
  return join(directory, build, "kontor-guest");
}
