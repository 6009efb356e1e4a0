/**
 * Blobs as files in a directory. A put writes a temporary file, syncs it to disk, and then gives it its final name. A
 * directory belongs to one server, so temporary files of an earlier process are leftovers.
 */
import { createHash, randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { link, mkdir, open, readdir, rename, rm, stat, statfs } from "node:fs/promises";
import { dirname, join, relative, sep } from "node:path";
import type { Readable } from "node:stream";
import { BlobExists, type BlobInfo, BlobNotFound, type Blobs, BlobsFull, requireKey } from "./blobs.ts";

const unfinished = ".unfinished";
/** Bytes written between two checks for free disk space. */
const lookEveryBytes = 64 * 1024 ** 2;

export class FsBlobs implements Blobs {
  readonly #directory: string;
  readonly #reserveBytes: number;

  /** Leaves `reserveBytes` of the disk free, because other programs share the disk. */
  constructor(directory: string, { reserveBytes = 0 }: { reserveBytes?: number } = {}) {
    this.#directory = directory;
    this.#reserveBytes = reserveBytes;
  }

  async put(key: string, content: AsyncIterable<Buffer>, options: { ifNoneMatch?: boolean } = {}) {
    const path = this.#path(key);
    const aside = join(this.#directory, unfinished, randomUUID());
    await mkdir(dirname(aside), { recursive: true, mode: 0o700 });
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    const hash = createHash("sha256");
    let bytes = 0;
    let lookAt = 0;
    try {
      const file = await open(aside, "wx", 0o600);
      try {
        for await (const chunk of content) {
          if (bytes >= lookAt) {
            await this.#requireRoom();
            lookAt = bytes + lookEveryBytes;
          }
          hash.update(chunk);
          bytes += chunk.length;
          await file.writeFile(chunk);
        }
        await file.sync();
      } finally {
        await file.close();
      }
      // `link` fails if the file exists; `rename` would replace it.
      await (options.ifNoneMatch ? link(aside, path) : rename(aside, path));
      await syncDirectory(dirname(path));
    } catch (error) {
      throw isCode(error, "EEXIST") ? new BlobExists(`The blob ${key} already exists.`) : error;
    } finally {
      await rm(aside, { force: true });
    }
    return { bytes, sha256: hash.digest("hex") };
  }

  async get(key: string, range?: { start: number; end: number }): Promise<Readable> {
    const path = this.#path(key);
    if (!(await this.head(key))) throw new BlobNotFound(`The blob ${key} does not exist.`);
    return createReadStream(path, range ? { start: range.start, end: range.end - 1 } : {});
  }

  async head(key: string): Promise<BlobInfo | undefined> {
    try {
      const found = await stat(this.#path(key));
      return found.isFile() ? { bytes: found.size, modifiedAt: found.mtime } : undefined;
    } catch (error) {
      if (isCode(error, "ENOENT") || isCode(error, "ENOTDIR")) return undefined;
      throw error;
    }
  }

  async delete(key: string): Promise<void> {
    await rm(this.#path(key), { force: true });
  }

  async list(prefix: string): Promise<string[]> {
    const entries = await readdir(this.#directory, { recursive: true, withFileTypes: true }).catch(
      (error: unknown) => {
        if (isCode(error, "ENOENT")) return [];
        throw error;
      },
    );
    return entries
      .filter((entry) => entry.isFile())
      .map((entry) => relative(this.#directory, join(entry.parentPath, entry.name)).replaceAll(sep, "/"))
      .filter((key) => key.startsWith(prefix) && !key.startsWith(`${unfinished}/`))
      .toSorted();
  }

  async deleteUnfinished(before: Date): Promise<void> {
    const directory = join(this.#directory, unfinished);
    for (const name of await readdir(directory).catch(() => [])) {
      const path = join(directory, name);
      const found = await stat(path).catch(() => undefined);
      if (found && found.mtime < before) await rm(path, { force: true });
    }
  }

  async #requireRoom(): Promise<void> {
    if (this.#reserveBytes === 0) return;
    const { bavail, bsize } = await statfs(this.#directory);
    if (bavail * bsize < this.#reserveBytes) throw new BlobsFull("The disk of the blob directory is full.");
  }

  #path(key: string): string {
    return join(this.#directory, requireKey(key));
  }
}

/** A new name is on disk only after its directory is synced (man 2 fsync). */
async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

function isCode(error: unknown, code: string): boolean {
  return (error as NodeJS.ErrnoException | null)?.code === code;
}
