/**
 * Where bytes that must outlive a host are kept: snapshots and what else is large. A directory here, an object store
 * with more hosts; both promise that a blob appears whole or not at all, and that what `put` acknowledged is on disk.
 */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { link, mkdir, open, readdir, rename, rm, stat } from "node:fs/promises";
import { dirname, join, relative, sep } from "node:path";
import { randomUUID } from "node:crypto";
import type { Readable } from "node:stream";

export interface BlobInfo {
  bytes: number;
  modifiedAt: Date;
}

export interface Blobs {
  /** Answers size and SHA-256 (hex) of what was stored. `ifNoneMatch`: fails with BlobExists instead of replacing. */
  put(
    key: string,
    content: AsyncIterable<Buffer>,
    options?: { ifNoneMatch?: boolean },
  ): Promise<{ bytes: number; sha256: string }>;
  /** `range` in bytes, `end` exclusive. Fails with BlobNotFound. */
  get(key: string, range?: { start: number; end: number }): Promise<Readable>;
  head(key: string): Promise<BlobInfo | undefined>;
  /** Of what is not there too. */
  delete(key: string): Promise<void>;
  /** Keys that begin with the prefix, in order. */
  list(prefix: string): Promise<string[]>;
}

export class BlobNotFound extends Error {
  override readonly name = "BlobNotFound";
}
export class BlobExists extends Error {
  override readonly name = "BlobExists";
}

/** Segments of a key: never empty, never `.` or `..`, so that a key cannot leave the directory. */
const keyPattern = /^(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+(?:\/(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+)*$/;
const unfinished = ".unfinished";

export class FsBlobs implements Blobs {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  async put(key: string, content: AsyncIterable<Buffer>, options: { ifNoneMatch?: boolean } = {}) {
    const path = this.#path(key);
    const aside = join(this.#directory, unfinished, randomUUID());
    await mkdir(dirname(aside), { recursive: true, mode: 0o700 });
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    const hash = createHash("sha256");
    let bytes = 0;
    try {
      const file = await open(aside, "wx", 0o600);
      try {
        for await (const chunk of content) {
          hash.update(chunk);
          bytes += chunk.length;
          await file.writeFile(chunk);
        }
        await file.sync();
      } finally {
        await file.close();
      }
      // link fails where something is there already; rename would replace it.
      await (options.ifNoneMatch ? link(aside, path) : rename(aside, path));
      await syncDirectory(dirname(path));
    } catch (error) {
      throw isCode(error, "EEXIST") ? new BlobExists(`There is a blob ${key} already.`) : error;
    } finally {
      await rm(aside, { force: true });
    }
    return { bytes, sha256: hash.digest("hex") };
  }

  async get(key: string, range?: { start: number; end: number }): Promise<Readable> {
    const path = this.#path(key);
    if (!(await this.head(key))) throw new BlobNotFound(`There is no blob ${key}.`);
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

  #path(key: string): string {
    if (!keyPattern.test(key)) throw new TypeError(`"${key}" is no key of a blob`);
    return join(this.#directory, key);
  }
}

/** A new name is on disk only when its directory is (man 2 fsync). */
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
