/**
 * A volume's directory to another place of the host, holes and all: written aside, synced, read back and compared, and
 * only then given its name. The volume must not be attached. An earlier try is started over.
 */
import { createHash, type Hash } from "node:crypto";
import { mkdir, open, readdir, rename, rm, statfs } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { RuntimeError } from "../driver.ts";
import { aside, begin, syncDirectory } from "../snapshots/manifest.ts";
import { writtenExtents } from "./extents.ts";
import { untilLetGo } from "./image.ts";

/** Small enough that the server answers others between two pieces: 1 MiB takes SHA-256 a millisecond. */
const PIECE_BYTES = 1024 * 1024;
const ZEROS = Buffer.alloc(PIECE_BYTES);

export interface Copied {
  /** That were not zero. */
  bytes: number;
  /** Of all pieces that were not zero, each after its place. */
  sha256: string;
}

/** Fails with `volume_missing` where nothing is there, and with `no_capacity` where the disk would be too full. */
export async function copyVolume(
  from: string,
  to: string,
  options: { reserveBytes: number; signal?: AbortSignal },
): Promise<Copied> {
  await untilLetGo(from);
  await rm(to, { recursive: true, force: true });
  const at = await begin(to);
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
      throw new RuntimeError("failed", "what was written of the volume is not what was read of it");
    }
    await syncDirectory(at);
    await rename(at, to);
    await syncDirectory(dirname(to));
    return { bytes, sha256 };
  } catch (error) {
    await rm(aside(to), { recursive: true, force: true });
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

/** The pieces that are not zero, in order; holes are not even read. Each is hashed with its place. */
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
      // Whole pieces, wherever an extent begins: the copy's extents are others than the original's.
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
  throw new RuntimeError("no_capacity", "the disk there has no room for the volume");
}

/** Directories before what is in them. */
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
    throw new RuntimeError("volume_missing", "the volume's data is not where it should be", { cause: error });
  }
}
