/** The context directory of a build. The context is untrusted, so no symlink out of it is followed. */
import { lstatSync } from "node:fs";
import { lstat, readFile, realpath } from "node:fs/promises";
import { join, posix, sep } from "node:path";
import { RuntimeError } from "../../driver.ts";

const ignoreFiles = [".containerignore", ".dockerignore"];
const ignoreMaxBytes = 256 * 1024;

/** Returns the directory below the checkout, which no symlink may leave. Fails with `image_failed`. */
export async function contextIn(checkout: string, directory: string): Promise<string> {
  const root = await realpath(checkout);
  const found = await realpath(join(root, posix.normalize(`/${directory}`))).catch(() => undefined);
  const isInside = found === root || found?.startsWith(root + sep) === true;
  if (found === undefined || !isInside || !(await lstat(found)).isDirectory())
    throw new RuntimeError("image_failed", `There is no directory ${directory} in the repository.`);
  return found;
}

/** Returns the repository's own ignore file, or an empty text if there is none. */
export async function ownIgnoreFile(context: string): Promise<string> {
  for (const name of ignoreFiles) {
    const file = join(context, name);
    const info = await lstat(file).catch(() => undefined);
    if (info?.isFile() && info.size <= ignoreMaxBytes) return readFile(file, "utf8");
  }
  return "";
}

/** True if a path of the context exists and none of its names is a symlink. The context must not change meanwhile. */
export function isPlainPath(context: string, path: string): boolean {
  const names = posix.normalize(`/${path}`).split("/").filter(Boolean);
  return names.every((_, index) => {
    const info = lstatSync(join(context, ...names.slice(0, index + 1)), { throwIfNoEntry: false });
    return info !== undefined && !info.isSymbolicLink();
  });
}
