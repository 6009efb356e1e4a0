/**
 * A read-only view of a checked-out repository, whose author may be hostile: nothing outside of it is read whatever
 * its links say, nothing that is not an ordinary file is opened (a FIFO would wait forever), and every answer is
 * bounded. Paths are relative, with `/` between names.
 */
import { constants, type Stats } from "node:fs";
import { open, opendir, realpath, stat } from "node:fs/promises";
import path from "node:path";

export interface Entry {
  name: string;
  /** What a link inside the tree leads to; `other` for what leads out of it, and for devices, sockets and FIFOs. */
  kind: "file" | "directory" | "other";
}

export interface Tree {
  /** The first `maxBytes` of a file as text; undefined where there is no such file. */
  read(file: string, maxBytes: number): Promise<string | undefined>;
  /** What a directory holds, by name, cut at a few thousand entries; nothing where there is none. `.` is the root. */
  list(directory: string): Promise<Entry[]>;
}

/** More than any directory that says what a project is; a listing beyond is an attack or a data set. */
const maxEntries = 4096;

/** What the system says of a path that is not there, cannot be, or leads in circles. */
const absent = new Set(["ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "EACCES", "EISDIR", "ENXIO"]);

/** Links are resolved once and then opened: the checkout is at rest, nobody else writes to it. */
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
      // a byte order mark is no part of the text: TextDecoder drops it
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
