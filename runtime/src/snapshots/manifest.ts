/**
 * The directory of a checkpoint after its bytes are written. Every file is hashed and synced, then the
 * manifest is written, then the directory is renamed. A directory with its final name is complete; any other
 * is a leftover.
 */
import { createHash } from "node:crypto";
import { link, mkdir, open, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { RuntimeError, type Checkpoint, type CheckpointOptions } from "../driver.ts";

const MANIFEST = "manifest.json";
/**
 * Size of the pieces in which files are hashed. Between two pieces, the server handles other work: SHA-256 of 1 MiB
 * takes a millisecond.
 */
const PIECE_BYTES = 1024 * 1024;

/** Returns the temporary name of a checkpoint until it is complete. */
export function temporaryPath(directory: string): string {
  return `${directory}.unfinished`;
}

/** Makes an empty temporary directory for a checkpoint. Deletes the leftovers of an earlier attempt. */
export async function makeTemporary(directory: string): Promise<string> {
  const at = temporaryPath(directory);
  await rm(at, { recursive: true, force: true });
  await mkdir(at, { recursive: true, mode: 0o700 });
  return at;
}

/**
 * Hashes and syncs the temporary directory, and renames it. A checkpoint that is not durable is only renamed.
 */
export async function commit(
  directory: string,
  made: Omit<Checkpoint, "bytes" | "files">,
  { isDurable = true }: Pick<CheckpointOptions, "isDurable"> = {},
): Promise<Checkpoint> {
  const at = temporaryPath(directory);
  const files: Checkpoint["files"] = [];
  const look = isDurable ? hashAndSync : measure;
  for (const name of await filesBelow(at)) files.push({ name, ...(await look(join(at, name))) });
  const checkpoint = { bytes: files.reduce((sum, { bytes }) => sum + bytes, 0), files, ...made };
  const manifest = await open(join(at, MANIFEST), "wx", 0o600);
  try {
    await manifest.writeFile(JSON.stringify(checkpoint));
    if (isDurable) await manifest.sync();
  } finally {
    await manifest.close();
  }
  if (isDurable) await syncDirectory(at);
  await rename(at, directory);
  if (isDurable) await syncDirectory(dirname(directory));
  return checkpoint;
}

/**
 * Gives the checkpoint a second name without copying. Each name can be deleted alone; the bytes are freed with the last
 * name. Returns false if the checkpoint is gone, or disappears meanwhile.
 */
export async function shareCheckpoint(directory: string, as: string): Promise<boolean> {
  const at = await makeTemporary(as);
  try {
    for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
      const from = join(entry.parentPath, entry.name);
      const to = join(at, relative(directory, from));
      await (entry.isDirectory() ? mkdir(to, { recursive: true }) : link(from, to));
    }
    // A checkpoint without a manifest is invalid: some of its files may have been deleted already.
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

/** Returns the manifest of a checkpoint. Fails with `not_restorable` if there is no complete checkpoint. */
export async function readManifest(directory: string): Promise<Checkpoint> {
  try {
    return JSON.parse(await readFile(join(directory, MANIFEST), "utf8")) as Checkpoint;
  } catch (error) {
    throw new RuntimeError("not_restorable", "the checkpoint is missing or incomplete", { cause: error });
  }
}

/**
 * Compares the files with the manifest. Fails with `not_restorable` if their bytes differ, or if files are missing or
 * added.
 */
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

type FileDigest = { bytes: number; sha256: string };

async function measure(path: string): Promise<{ bytes: number; sha256: null }> {
  return { bytes: (await stat(path)).size, sha256: null };
}

/**
 * Returns the hash of a file, and syncs the file. The kernel continues to write the file to disk while its bytes are
 * read again.
 */
async function hashAndSync(path: string): Promise<FileDigest> {
  const file = await open(path, "r+");
  try {
    const [hashed] = await Promise.all([hash(path), file.sync()]);
    return hashed;
  } finally {
    await file.close();
  }
}

async function hash(path: string): Promise<FileDigest> {
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

/** Syncs a directory: a name is on disk only after its directory is synced (fsync(2)). */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
