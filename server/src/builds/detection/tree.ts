/**
 * A read-only view of a checkout whose author may be hostile. Links out of the checkout are not followed, and every
 * result is bounded. Only ordinary files are opened, because a FIFO would block forever. Paths are relative, with `/`
 * between names.
 */
import { constants, type Stats } from "node:fs";
import { open, opendir, realpath, stat } from "node:fs/promises";
import path from "node:path";

export interface Entry {
  name: string;
  /**
   * Kind of the entry, after links are resolved. `other`: a link to a target outside the tree, or a device, socket or
   * FIFO.
   */
  kind: "file" | "directory" | "other";
}

export interface Tree {
  /** Returns the first `maxBytes` of a file as text; undefined if the file does not exist. */
  read(file: string, maxBytes: number): Promise<string | undefined>;
  /**
   * Returns the entries of a directory by name, at most `maxEntries`. Empty if the directory does not exist. `.` is the
   * root.
   */
  list(directory: string): Promise<Entry[]>;
}

/**
 * Limit of entries, above the size of any directory with project files. A larger directory is an attack or a data set.
 */
const maxEntries = 4096;

/** Codes of errors for a path that does not exist, is invalid, or is a loop of links. */
const absent = new Set(["ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "EACCES", "EISDIR", "ENXIO"]);

/**
 * Returns a tree of the directory. A link is resolved before its target is opened; no process writes to the checkout
 * meanwhile.
 */
export function directoryTree(root: string): Tree {
  const home = realpath(root);

  async function inside(relative: string): Promise<string | undefined> {
    if (!isRelative(relative)) return undefined;
    const top = await home;
    const real = await orUndefined(realpath(path.join(top, relative)));
    return real === top || real?.startsWith(top + path.sep) ? real : undefined;
  }

  async function kindOf(relative: string): Promise<Entry["kind"]> {
    const real = await inside(relative);
    const status = real === undefined ? undefined : await orUndefined(stat(real));
    return status === undefined ? "other" : plainKind(status);
  }

  return {
    async read(file, maxBytes) {
      const real = await inside(file);
      if (real === undefined) return undefined;
      const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
      await using handle = await orUndefined(open(real, flags));
      if (!(await handle?.stat())?.isFile()) return undefined;
      const bytes = Buffer.alloc(maxBytes);
      let length = 0;
      for (let got = 1; got > 0 && length < maxBytes; length += got)
        got = (await handle!.read(bytes, length, maxBytes - length, length)).bytesRead;
      // TextDecoder drops the byte order mark.
      return new TextDecoder().decode(bytes.subarray(0, length));
    },

    async list(directory) {
      const real = await inside(directory);
      const opened = real === undefined ? undefined : await orUndefined(opendir(real));
      if (opened === undefined) return [];
      const entries: Entry[] = [];
      for await (const entry of opened) {
        const { name } = entry;
        if (entries.length === maxEntries) break;
        entries.push({
          name,
          kind: entry.isSymbolicLink() ? await kindOf(path.posix.join(directory, name)) : plainKind(entry),
        });
      }
      return entries.toSorted((a, b) => (a.name < b.name ? -1 : 1));
    },
  };
}

function plainKind(found: Pick<Stats, "isFile" | "isDirectory">): Entry["kind"] {
  return found.isFile() ? "file" : found.isDirectory() ? "directory" : "other";
}

function isRelative(relative: string): boolean {
  return !relative.includes("\0") && !path.posix.isAbsolute(relative) && !relative.split("/").includes("..");
}

async function orUndefined<T>(promise: Promise<T>): Promise<T | undefined> {
  return promise.catch((error: NodeJS.ErrnoException) => {
    if (absent.has(error.code ?? "")) return undefined;
    throw error;
  });
}
