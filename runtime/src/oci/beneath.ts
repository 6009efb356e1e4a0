/**
 * Files of a directory that builders write: no symlink is followed below it, whoever replaces a name meanwhile. Each name
 * is opened in the directory before it, which its descriptor holds (proc_pid_fd(5)). The directory itself may be reached
 * by symlinks: a data directory may lie on another disk.
 */
import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";

const DIRECTORY = constants.O_RDONLY | constants.O_DIRECTORY;
/** Opens no device for good and waits for no writer of a pipe. */
const FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Path of a name in an open directory. */
export function within(directory: FileHandle, name: string): string {
  if (name === "" || name === "." || name === ".." || name.includes("/"))
    throw new Error(`"${name}" is no name of a file`);
  return `/proc/self/fd/${directory.fd}/${name}`;
}

/** Fails with ENOTDIR or ELOOP for a name that is a symlink. */
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

/** A whole regular file; throws for anything else, and for a larger one. */
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
