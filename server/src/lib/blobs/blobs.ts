/**
 * Where bytes that must outlive a host are kept: backups, and what else is large. A directory here, an object store
 * with more hosts; both promise that a blob appears whole or not at all, and that what `put` acknowledged is on disk.
 */
import type { Readable } from "node:stream";

export interface BlobInfo {
  bytes: number;
  modifiedAt: Date;
}

export interface Blobs {
  /**
   * Answers size and SHA-256 (hex) of what was stored. Content is taken as fast as it can be put away, and of its bytes
   * never more than a few pieces are in memory. `ifNoneMatch`: fails with BlobExists instead of replacing.
   */
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
  /** What puts left that were begun before then and will never end: their process did. */
  dropUnfinished(before: Date): Promise<void>;
  /** An address of the store's own that hands out one blob for a while; undefined where it has none. */
  presign?(key: string, options: { expiresInSeconds: number; filename: string }): Promise<string>;
}

export class BlobNotFound extends Error {
  override readonly name = "BlobNotFound";
}
export class BlobExists extends Error {
  override readonly name = "BlobExists";
}
/** The store takes no more. */
export class BlobsFull extends Error {
  override readonly name = "BlobsFull";
}

/** Segments of a key: never empty, never `.` or `..`, so that a key cannot leave the directory. */
const keyPattern = /^(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+(?:\/(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+)*$/;

export function requireKey(key: string): string {
  if (!keyPattern.test(key)) throw new TypeError(`"${key}" is no key of a blob`);
  return key;
}
