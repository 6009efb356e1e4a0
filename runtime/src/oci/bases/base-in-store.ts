/**
 * Opens files in a directory that builders write, without following a symlink below it, even if a name is replaced at
 * the same time. Each name is opened by the descriptor of its parent directory (proc_pid_fd(5)). The path of the
 * directory itself may have symlinks, because a data directory may be on another disk.
 */
import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";

const DIRECTORY = constants.O_RDONLY | constants.O_DIRECTORY;
/** Flags of an open that follows no symlink and does not block on a pipe or a device. */
const FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Returns the path of a name in an open directory. */
export function within(directory: FileHandle, name: string): string {
  if (name === "" || name === "." || name === ".." || name.includes("/"))
    throw new Error(`"${name}" is not a valid file name`);
  return `/proc/self/fd/${directory.fd}/${name}`;
}

/** Opens a directory below `root`. Throws ENOTDIR or ELOOP if a name is a symlink. */
export async function openDirectory(root: string, names: readonly string[]): Promise<FileHandle> {
  let at = await open(root, DIRECTORY);
  for (const name of names) {
    const outer = at;
    try {
      at = await open(within(outer, name), DIRECTORY | constants.O_NOFOLLOW);
    } finally {
      await outer.close();
    }
  }
  return at;
}

/** Reads a whole regular file. Throws for other kinds of file, and for a file larger than `maxBytes`. */
export async function readWithin(directory: FileHandle, name: string, maxBytes: number): Promise<Buffer> {
  const file = await open(within(directory, name), FILE);
  try {
    const info = await file.stat();
    if (!info.isFile()) throw new Error(`${name} is no regular file`);
    if (info.size > maxBytes) throw new Error(`${name} is larger than ${maxBytes} bytes`);
    return await file.readFile();
  } finally {
    await file.close();
  }
}
