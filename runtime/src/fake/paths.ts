/**
 * Maps paths of a fake machine to the host: each absolute path inside is the same path below a scratch
 * directory.
 */
import { lstat, readlink, realpath } from "node:fs/promises";
import { basename, dirname, join, posix, resolve, sep } from "node:path";
import { RuntimeError, type RuntimeErrorKind } from "../driver.ts";

const MAX_PATH_BYTES = 4095;
const MAX_NAME_BYTES = 255;
/** Largest number of symlinks in a path, as in the kernel. */
const MAX_LINKS = 40;

/** Fails with `invalid_path` for a path that no machine accepts. */
export function toHostPath(root: string, path: string): string {
  const bad =
    !path.startsWith("/") ||
    path.includes("\0") ||
    Buffer.byteLength(path) > MAX_PATH_BYTES ||
    path.split("/").some((name) => Buffer.byteLength(name) > MAX_NAME_BYTES);
  if (bad) throw new RuntimeError("invalid_path", "the path is not absolute, too long, or holds a NUL byte");
  return join(root, posix.normalize(path));
}

/** Returns `path` with every symlink in its parents followed, even if the last parents do not exist yet. */
export async function withRealParent(path: string): Promise<string> {
  return join(await realExisting(dirname(path)), basename(path));
}

/**
 * Returns the real target of a write to `path`. Follows a last symlink too, also one with a missing target.
 */
export async function realTarget(path: string): Promise<string> {
  let at = await withRealParent(path);
  for (let links = 0; links < MAX_LINKS; links += 1) {
    const info = await lstat(at).catch(() => undefined);
    if (info?.isSymbolicLink() !== true) return at;
    at = await withRealParent(resolve(dirname(at), await readlink(at)));
  }
  throw new RuntimeError("invalid_path", "too many symbolic links");
}

async function realExisting(path: string): Promise<string> {
  try {
    return await realpath(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT" || path === sep) throw error;
    return join(await realExisting(dirname(path)), basename(path));
  }
}

export function isBelow(path: string, root: string): boolean {
  return path.startsWith(root.endsWith(sep) ? root : root + sep);
}

const KINDS: Record<string, RuntimeErrorKind> = {
  ENOENT: "path_not_found",
  EISDIR: "is_directory",
  ENOTDIR: "not_directory",
  EEXIST: "exists",
  ENOTEMPTY: "exists",
  EACCES: "not_permitted",
  EPERM: "not_permitted",
  EROFS: "not_permitted",
  ENAMETOOLONG: "invalid_path",
  ELOOP: "invalid_path",
  EINVAL: "invalid_path",
  ENOSPC: "disk_full",
  EAGAIN: "too_many_processes",
};

/** Maps an error of the host's filesystem to the error of a machine. */
export function toRuntimeError(error: unknown): RuntimeError {
  if (error instanceof RuntimeError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  return new RuntimeError(KINDS[code ?? ""] ?? "failed", message, { cause: error });
}
