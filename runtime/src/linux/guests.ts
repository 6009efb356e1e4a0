/**
 * The guest programs of this host, each build under its own name and for good. A machine's PID 1 is mapped from its file
 * for as long as the machine lives, and a checkpoint is restored only onto the very same one: a server that brings a
 * newer guest program must not take the older away from under machines that run, or are paused.
 */
import { createHash } from "node:crypto";
import { chmod, mkdir, readFile, rename, stat, utimes, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { RuntimeError } from "../driver.ts";

/** gVisor compares times too: the same build has the same on every host. */
const NO_TIME = new Date(0);

/** Keeps a copy of the program unless there is one; answers the build's name. */
export async function keepGuest(directory: string, program: string): Promise<string> {
  const bytes = await readFile(program).catch((error: unknown) => {
    throw new RuntimeError("failed", "the guest program has not been built", { cause: error });
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
