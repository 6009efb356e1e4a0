/**
 * Copies a volume's directory to another directory of the host, and keeps holes as holes. The copy is written to a
 * temporary name, synced, read back and compared before it is renamed. The volume must not be attached. After a failed
 * attempt, the next call copies from the start.
 */
import { createHash, type Hash } from "node:crypto";
import { mkdir, open, readdir, rename, rm, statfs } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { RuntimeError } from "../driver.ts";
import { makeTemporary, syncDirectory, temporaryPath } from "../snapshots/manifest.ts";
import { writtenExtents } from "./extents.ts";
import { waitUntilReleased } from "./image.ts";

/**
 * Size of the pieces that are copied. Between two pieces, the server handles other work: SHA-256 of 1 MiB takes a
 * millisecond.
 */
const PIECE_BYTES = 1024 * 1024;
const ZEROS = Buffer.alloc(PIECE_BYTES);

export interface CopyResult {
  /** Number of bytes in pieces that are not zero. */
  bytes: number;
  /** Hash of all pieces that are not zero, each after its position. */
  sha256: string;
}

/**
 * Copies a volume. Fails with `volume_missing` if the volume does not exist, and with `no_capacity` if the disk would
 * be too full.
 */
export async function copyVolume(
  from: string,
  to: string,
  options: { reserveBytes: number; signal?: AbortSignal },
): Promise<CopyResult> {
  await waitUntilReleased(from);
  await rm(to, { recursive: true, force: true });
  const at = await makeTemporary(to);
  try {
    const written = createHash("sha256");
    const read = createHash("sha256");
    let bytes = 0;
    for (const { name, isDirectory } of await everythingBelow(from)) {
      if (isDirectory) {
        await mkdir(join(at, name), { recursive: true, mode: 0o700 });
        continue;
      }
      bytes += await copyFile(join(from, name), join(at, name), written, options);
      for await (const _ of pieces(join(at, name), read, options.signal));
    }
    const sha256 = written.digest("hex");
    if (read.digest("hex") !== sha256) {
      throw new RuntimeError("failed", "the copy of the volume differs from the original");
    }
    await syncDirectory(at);
    await rename(at, to);
    await syncDirectory(dirname(to));
    return { bytes, sha256 };
  } catch (error) {
    await rm(temporaryPath(to), { recursive: true, force: true });
    throw error;
  }
}

async function copyFile(
  from: string,
  to: string,
  hash: Hash,
  { reserveBytes, signal }: { reserveBytes: number; signal?: AbortSignal },
): Promise<number> {
  const target = await open(to, "wx", 0o600);
  try {
    let bytes = 0;
    let untilCheck = 0;
    for await (const { at, data } of pieces(from, hash, signal)) {
      if (untilCheck <= 0) {
        await refuseFull(dirname(to), reserveBytes);
        untilCheck = reserveBytes / 4;
      }
      await target.write(data, 0, data.length, at);
      bytes += data.length;
      untilCheck -= data.length;
    }
    const source = await open(from, "r");
    try {
      await target.truncate((await source.stat()).size);
    } finally {
      await source.close();
    }
    await target.sync();
    return bytes;
  } finally {
    await target.close();
  }
}

/**
 * Yields the pieces that are not zero, in order, without reading holes. Adds each piece with its position to the hash.
 */
async function* pieces(
  path: string,
  hash: Hash,
  signal: AbortSignal | undefined,
): AsyncGenerator<{ at: number; data: Buffer }> {
  const file = await open(path, "r");
  try {
    const { size } = await file.stat();
    const buffer = Buffer.allocUnsafe(PIECE_BYTES);
    let next = 0;
    for (const { start, end } of await writtenExtents(path, size)) {
      // Reads whole pieces, wherever an extent starts: the extents of copy and original differ.
      for (let at = Math.max(next, start - (start % PIECE_BYTES)); at < end; at = next) {
        signal?.throwIfAborted();
        next = at + PIECE_BYTES;
        const { bytesRead } = await file.read(buffer, 0, PIECE_BYTES, at);
        const data = buffer.subarray(0, bytesRead);
        if (data.equals(ZEROS.subarray(0, bytesRead))) continue;
        hash.update(`${at}:`).update(data);
        yield { at, data };
      }
    }
  } finally {
    await file.close();
  }
}

async function refuseFull(directory: string, reserveBytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  if (bavail * bsize > reserveBytes) return;
  throw new RuntimeError("no_capacity", "the target disk has no room for the volume");
}

/** Lists everything below the directory, with each directory before its content. */
async function everythingBelow(directory: string): Promise<{ name: string; isDirectory: boolean }[]> {
  try {
    const entries = await readdir(directory, { recursive: true, withFileTypes: true });
    return entries
      .filter((entry) => entry.isFile() || entry.isDirectory())
      .map((entry) => ({
        name: relative(directory, join(entry.parentPath, entry.name)),
        isDirectory: entry.isDirectory(),
      }))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw new RuntimeError("volume_missing", "the volume's data is missing", { cause: error });
  }
}
