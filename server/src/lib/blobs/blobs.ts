/**
 * Storage for bytes that must outlive a host, such as backups: a directory on one host, an object store for several
 * hosts. Both kinds of storage guarantee that a blob appears whole or not at all, and that an acknowledged `put` is on
 * disk.
 */
import type { Readable } from "node:stream";

export interface BlobInfo {
  bytes: number;
  modifiedAt: Date;
}

export interface Blobs {
  /**
   * Returns the size and SHA-256 (hex) of the stored bytes. Reads the content as fast as the store writes it, and holds
   * only a few pieces in memory. With `ifNoneMatch`, an existing blob makes it fail with BlobExists.
   */
  put(
    key: string,
    content: AsyncIterable<Buffer>,
    options?: { ifNoneMatch?: boolean },
  ): Promise<{ bytes: number; sha256: string }>;
  /** `range` is in bytes, with an exclusive `end`. Fails with BlobNotFound. */
  get(key: string, range?: { start: number; end: number }): Promise<Readable>;
  head(key: string): Promise<BlobInfo | undefined>;
  /** Succeeds for a missing blob too. */
  delete(key: string): Promise<void>;
  /** Lists the keys that begin with the prefix, in order. */
  list(prefix: string): Promise<string[]>;
  /**
   * Deletes the leftovers of uploads that started before this time. Their processes have ended, so these uploads never
   * complete.
   */
  deleteUnfinished(before: Date): Promise<void>;
  /** Returns a temporary URL at the store that serves one blob. Undefined for stores without such URLs. */
  presign?(key: string, options: { expiresInSeconds: number; filename: string }): Promise<string>;
}

export class BlobNotFound extends Error {
  override readonly name = "BlobNotFound";
}
export class BlobExists extends Error {
  override readonly name = "BlobExists";
}
/** Error: the store has no space left. */
export class BlobsFull extends Error {
  override readonly name = "BlobsFull";
}

/** A segment is never empty, `.` or `..`, so a key cannot leave the directory. */
const keyPattern = /^(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+(?:\/(?!\.{1,2}(?:\/|$))[A-Za-z0-9._-]+)*$/;

export function requireKey(key: string): string {
  if (!keyPattern.test(key))
    throw new TypeError(`"${key}" is not a blob key; use letters, digits, ".", "_", "-" and slashes`);
  return key;
}
