/**
 * `kontor backup`: the whole installation in one file, while the server runs. The database comes first, at one moment;
 * the files it names are copied after it. The memory and the disk of a running machine are not in it: a sandbox keeps
 * its volumes, and its snapshots when it is paused.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  closeSync,
  fsyncSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import type { Config } from "@kontor/server/config.ts";
import type { Connection } from "@kontor/server/db/db.ts";
import { dumpDatabase } from "@kontor/server/db/dump.ts";
import { ensureEmbedded, stopEmbedded } from "@kontor/server/db/embedded.ts";
import { lockBackup } from "../backup/lock.ts";
import { append, type Manifest, manifestFile, pack, type Part, sha256 } from "../backup/parts.ts";
import { externalBlobs, isBelow, ownMounts, volumesDirectories } from "../backup/places.ts";
import { copyVolume } from "../backup/volumes.ts";
import { Failure } from "../lib/failure.ts";
import { startStep } from "../lib/steps-view.ts";
import { readConfig } from "./config.ts";

/** Entries of the data directory that a start makes anew, or that parts of their own hold. */
const leftOut = [
  "postgres",
  "volumes",
  "git",
  "work",
  "compile-cache",
  "server.json",
  "backup.lock",
  "kill-at",
];
const leftOutBelow = ["machines/machines", "machines/roots", "machines/mount-points", "oci/builds"];
/** A push or the repository's own housekeeping moves objects while they are read. */
const gitAttempts = 3;

export async function backup(target: string, options: { data?: string }): Promise<void> {
  const config = readConfig(options);
  if (!existsSync(path.join(config.dataDir, "host-id"))) {
    throw new Failure(`There is no installation in ${config.dataDir}.`, {
      hint: "Name its data directory: kontor backup FILE --data DIR.",
    });
  }
  const file = targetFile(target, config);
  const release = lockBackup(config.dataDir);
  const stage = mkdtempSync(path.join(path.dirname(file), ".kontor-backup-"));
  const partial = path.join(stage, "backup.tar");
  try {
    const { manifest, lost } = await write(config, stage, partial);
    // It holds every secret of the installation.
    chmodSync(partial, 0o600);
    sync(partial);
    renameSync(partial, file);
    sync(path.dirname(file));
    for (const name of manifest.missing) process.stdout.write(`· volume ${name} was deleted meanwhile\n`);
    if (config.secretsKey !== null) {
      process.stdout.write("· KONTOR_SECRETS_KEY is not in the backup: keep it, a restore needs it\n");
    }
    process.stdout.write(`${file}\n`);
    if (lost.length > 0) {
      throw new Failure(`The backup lacks ${lost.length} volumes.`, { hint: lost.join("\n") });
    }
  } finally {
    rmSync(stage, { recursive: true, force: true });
    release();
  }
}

/** The file to write: outside of all that is copied, and not there yet. */
function targetFile(target: string, config: Config): string {
  const full = path.resolve(target);
  const isDirectory = existsSync(full) && statSync(full).isDirectory();
  const stamp = new Date().toISOString().replaceAll(/[:.]/g, "-");
  const file = isDirectory ? path.join(full, `kontor-${stamp}.tar`) : full;
  if (existsSync(file)) throw new Failure(`${file} is there already.`, { hint: "Name a new file." });
  const directory = path.dirname(file);
  if (!existsSync(directory)) throw new Failure(`There is no directory ${directory}.`, { hint: "Make it." });
  const hostId = readFileSync(path.join(config.dataDir, "host-id"), "utf8").trim();
  for (const place of [
    config.dataDir,
    externalBlobs(config),
    ...volumesDirectories(config, hostId).values(),
  ]) {
    if (place === null || !existsSync(place) || !isBelow(realpathSync(directory), realpathSync(place)))
      continue;
    throw new Failure(`${file} is below ${place}, which is to be copied.`, {
      hint: "Name a file outside of it, best on another disk.",
    });
  }
  return file;
}

async function write(
  config: Config,
  stage: string,
  archive: string,
): Promise<{ manifest: Manifest; lost: string[] }> {
  const { dataDir } = config;
  const hostId = readFileSync(path.join(dataDir, "host-id"), "utf8").trim();
  const manifest: Manifest = {
    format: 1,
    made_at: new Date().toISOString(),
    host_id: hostId,
    parts: [],
    missing: [],
  };
  const lost: string[] = [];
  const add = async (part: Omit<Part, "sha256">): Promise<void> => {
    const staged = path.join(stage, part.file);
    manifest.parts.push({ ...part, sha256: await sha256(staged) });
    await append(archive, stage, part.file);
    rmSync(staged);
  };

  const database = startStep("Database");
  await withDatabase(config, (connection) => dumpDatabase(connection, path.join(stage, "database")));
  await pack(path.join(stage, "database.tar"), stage, ["database"], { compress: false });
  rmSync(path.join(stage, "database"), { recursive: true });
  await add({ kind: "database", file: "database.tar" });
  database.done();

  const volumes = startStep("Volumes");
  for (const [region, directory] of volumesDirectories(config, hostId)) {
    for (const id of existsSync(directory) ? readdirSync(directory) : []) {
      // A name with a dot is a volume that is being made.
      if (!/^[A-Za-z0-9_-]+$/.test(id)) continue;
      volumes.update(id);
      const copy = path.join(stage, "volume", id);
      mkdirSync(copy, { recursive: true, mode: 0o700 });
      const copied = await copyVolume(path.join(directory, id, image), path.join(copy, image));
      if (copied === "copied") {
        const file = `volume.${region}.${id}.tar.gz`;
        await pack(path.join(stage, file), path.join(stage, "volume"), [id]);
        await add({ kind: "volume", region, file });
      } else if (copied === "missing") manifest.missing.push(id);
      else lost.push(`volume ${id}: ${copied.failure}`);
      rmSync(path.join(stage, "volume"), { recursive: true });
    }
  }
  volumes.done();

  const files = startStep("Files");
  if (existsSync(path.join(dataDir, "git"))) {
    files.update("repositories");
    await packRepositories(dataDir, path.join(stage, "git.tar.gz"));
    await add({ kind: "files", file: "git.tar.gz" });
  }
  const names = readdirSync(dataDir).filter((name) => !leftOut.includes(name) && !name.includes(".tmp-"));
  const exclude = [...leftOutBelow, ...ownMounts(dataDir)].map((name) => `${name}/*`);
  files.update("images, snapshots, blobs, keys and settings");
  await pack(path.join(stage, "files.tar.gz"), dataDir, names, { exclude });
  await add({ kind: "files", file: "files.tar.gz" });
  const blobs = externalBlobs(config);
  if (blobs !== null && existsSync(blobs)) {
    files.update("backups of add-ons");
    await pack(path.join(stage, "blobs.tar.gz"), blobs, ["."]);
    await add({ kind: "blobs", file: "blobs.tar.gz" });
  }
  files.done();

  writeFileSync(path.join(stage, manifestFile), JSON.stringify(manifest, null, 1), { mode: 0o600 });
  await append(archive, stage, manifestFile);
  return { manifest, lost };
}

const image = "volume.ext4";

async function packRepositories(dataDir: string, target: string): Promise<void> {
  for (let attempt = 1; attempt <= gitAttempts; attempt += 1) {
    rmSync(target, { force: true });
    if ((await pack(target, dataDir, ["git"])) === "whole") return;
  }
  throw new Failure("Repositories changed each time they were read.", { hint: "Run the backup again." });
}

/** The embedded PostgreSQL is started where it does not run, and then stopped again. */
async function withDatabase<T>(config: Config, work: (connection: Connection) => Promise<T>): Promise<T> {
  if (config.databaseUrl !== null) return work({ url: config.databaseUrl });
  const { connection, adopted } = await ensureEmbedded(config.dataDir);
  try {
    return await work(connection);
  } finally {
    if (!adopted) await stopEmbedded(config.dataDir);
  }
}

function sync(file: string): void {
  const descriptor = openSync(file, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
