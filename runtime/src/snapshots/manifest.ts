/**
 * The directory of a checkpoint, once its bytes are written: every file hashed and on disk, then the manifest, then the
 * name. A directory that has its final name is whole; one that has not is a leftover.
 */
import { createHash } from "node:crypto";
import { link, mkdir, open, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { RuntimeError, type Checkpoint, type CheckpointOptions } from "../driver.ts";

const MANIFEST = "manifest.json";
/** Small enough that the server answers others between two pieces: 1 MiB takes SHA-256 a millisecond. */
const PIECE_BYTES = 1024 * 1024;

/** Where a checkpoint is written before it is whole. */
export function aside(directory: string): string {
  return `${directory}.unfinished`;
}

/** An empty directory to write into; whatever an earlier try left there is gone. */
export async function begin(directory: string): Promise<string> {
  const at = aside(directory);
  await rm(at, { recursive: true, force: true });
  await mkdir(at, { recursive: true, mode: 0o700 });
  return at;
}

/** Hashes and syncs what was written aside, and gives it its name. What is not to last gets a name alone. */
export async function commit(
  directory: string,
  made: Omit<Checkpoint, "bytes" | "files">,
  { isLasting = true }: Pick<CheckpointOptions, "isLasting"> = {},
): Promise<Checkpoint> {
  const at = aside(directory);
  const files: Checkpoint["files"] = [];
  const look = isLasting ? hashAndSync : measure;
  for (const name of await filesBelow(at)) files.push({ name, ...(await look(join(at, name))) });
  const checkpoint = { bytes: files.reduce((sum, { bytes }) => sum + bytes, 0), files, ...made };
  const manifest = await open(join(at, MANIFEST), "wx", 0o600);
  try {
    await manifest.writeFile(JSON.stringify(checkpoint));
    if (isLasting) await manifest.sync();
  } finally {
    await manifest.close();
  }
  if (isLasting) await syncDirectory(at);
  await rename(at, directory);
  if (isLasting) await syncDirectory(dirname(directory));
  return checkpoint;
}

/**
 * The same checkpoint under another name, without copying a byte: what is left of it when one name is removed is the
 * other, and the bytes go with the last. False where it is gone, or goes meanwhile.
 */
export async function share(directory: string, as: string): Promise<boolean> {
  const at = await begin(as);
  try {
    for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
      const from = join(entry.parentPath, entry.name);
      const to = join(at, relative(directory, from));
      await (entry.isDirectory() ? mkdir(to, { recursive: true }) : link(from, to));
    }
    // A checkpoint without its manifest is none: half of one may have been deleted already.
    await readFile(join(at, MANIFEST));
    await syncDirectory(at);
    await rename(at, as);
    await syncDirectory(dirname(as));
    return true;
  } catch (error) {
    await rm(at, { recursive: true, force: true });
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return false;
    throw error;
  }
}

/** Fails with `not_restorable` where there is no whole checkpoint. */
export async function readManifest(directory: string): Promise<Checkpoint> {
  try {
    return JSON.parse(await readFile(join(directory, MANIFEST), "utf8")) as Checkpoint;
  } catch (error) {
    throw new RuntimeError("not_restorable", "the checkpoint is not there, or not whole", { cause: error });
  }
}

/** Fails with `not_restorable` where a byte is not what it was when it was written, or there are fewer or more of them. */
export async function verify(directory: string, checkpoint: Checkpoint): Promise<void> {
  for (const { name, bytes, sha256 } of checkpoint.files) {
    const look = sha256 === null ? measure : hash;
    const found = await look(join(directory, name)).catch((error: unknown) => {
      throw new RuntimeError("not_restorable", `${name} of the checkpoint cannot be read`, { cause: error });
    });
    if (found.bytes === bytes && found.sha256 === sha256) continue;
    throw new RuntimeError("not_restorable", `${name} of the checkpoint is damaged`);
  }
}

async function filesBelow(directory: string): Promise<string[]> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(directory, join(entry.parentPath, entry.name)))
    .toSorted();
}

type Hashed = { bytes: number; sha256: string };

async function measure(path: string): Promise<{ bytes: number; sha256: null }> {
  return { bytes: (await stat(path)).size, sha256: null };
}

/** The write-back goes on while the bytes are read again. */
async function hashAndSync(path: string): Promise<Hashed> {
  const file = await open(path, "r+");
  try {
    const [hashed] = await Promise.all([hash(path), file.sync()]);
    return hashed;
  } finally {
    await file.close();
  }
}

async function hash(path: string): Promise<Hashed> {
  const file = await open(path, "r");
  try {
    const sum = createHash("sha256");
    const buffer = Buffer.allocUnsafe(PIECE_BYTES);
    let bytes = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, PIECE_BYTES, bytes);
      if (bytesRead === 0) return { bytes, sha256: sum.digest("hex") };
      sum.update(buffer.subarray(0, bytesRead));
      bytes += bytesRead;
    }
  } finally {
    await file.close();
  }
}

/** A name is on disk only when its directory is (fsync(2)). */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
