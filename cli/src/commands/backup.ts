/**
 * `kontor backup` writes the whole installation into one file while the server runs. The command dumps the database at
 * one moment, then copies the files that the rows name. The backup contains volumes, and snapshots of paused sandboxes.
 * The backup does not contain the memory or the disk of running machines.
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
import { dumpDatabase, listVolumes } from "@kontor/server/db/dump.ts";
import { ensureEmbedded, stopEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { lockBackup } from "../backup/lock.ts";
import {
  append,
  linkedFiles,
  type Manifest,
  manifestFile,
  pack,
  type Part,
  sha256,
} from "../backup/parts.ts";
import { externalBlobs, followLinks, isBelow, ownMounts, volumesDirectories } from "../backup/places.ts";
import { absentVolumes, copyVolume } from "../backup/volumes.ts";
import { Failure } from "../lib/failure.ts";
import { startStep } from "../lib/steps-view.ts";
import { readRunningConfig } from "./config.ts";

/** Entries of the data directory that a start creates again, or that have their own part. */
const leftOut = [
  "postgres",
  "volumes",
  "git",
  "work",
  "compile-cache",
  "server.json",
  "backup.lock",
  "kill-at",
  // Two entries lead to the code of this host, and to the database before the last upgrade.
  "current",
  "upgrade",
  // The file has variables of a shell, secrets among them. The next `kontor up` deletes it.
  "restart-settings.json",
];
const leftOutBelow = ["machines/machines", "machines/roots", "machines/mount-points", "oci/builds"];
/** Largest number of attempts to copy a repository: a push or git's housekeeping may move objects during the read. */
const gitAttempts = 3;

export async function backup(target: string, options: { data?: string }): Promise<void> {
  const config = readRunningConfig(options);
  if (!existsSync(path.join(config.dataDir, "host-id"))) {
    throw new Failure(`There is no installation in ${config.dataDir}.`, {
      hint: "Name its data directory: kontor backup FILE --data DIR.",
    });
  }
  if (config.databaseUrl === null && !existsSync(path.join(config.dataDir, "postgres", "data"))) {
    throw new Failure(`There is no database in ${config.dataDir}.`, {
      hint: "Set KONTOR_DATABASE_URL as the server has it.",
    });
  }
  const file = targetFile(target, config);
  const release = lockBackup(config.dataDir);
  const stage = makeStage(path.dirname(file), hostIdOf(config));
  const signals = removeOnSignal(() => {
    rmSync(stage, { recursive: true, force: true });
    release();
  });
  const partial = path.join(stage, "backup.tar");
  try {
    const { manifest, lost } = await write(config, stage, partial);
    // The file contains every secret of the installation.
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
      throw new Failure(`The backup lacks ${lost.length} items.`, { hint: lost.join("\n") });
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
    throw new Failure(`The disk of ${path.dirname(file)} is full.`, {
      hint: "Free some space, or name a file on another disk. No file was written.",
    });
  } finally {
    signals.done();
    rmSync(stage, { recursive: true, force: true });
    release();
  }
}

/** Makes a directory for unfinished parts. Removes such directories of killed backups of this installation. */
function makeStage(directory: string, hostId: string): string {
  const prefix = `.kontor-backup-${hostId}-`;
  for (const name of readdirSync(directory).filter((entry) => entry.startsWith(prefix))) {
    rmSync(path.join(directory, name), { recursive: true, force: true });
  }
  return mkdtempSync(path.join(directory, prefix));
}

/** Calls `remove` when a signal ends the backup, because unfinished parts contain secrets. */
function removeOnSignal(remove: () => void): { done(): void } {
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const end = (): void => {
    remove();
    process.stderr.write("kontor: the backup was stopped; no file was written\n");
    process.exit(1);
  };
  for (const signal of signals) process.on(signal, end);
  return { done: () => signals.forEach((signal) => process.off(signal, end)) };
}

function hostIdOf({ dataDir }: Config): string {
  return readFileSync(path.join(dataDir, "host-id"), "utf8").trim();
}

/** Returns the path of the file to write. The file must not exist, and must be outside of the copied directories. */
function targetFile(target: string, config: Config): string {
  const full = path.resolve(target);
  const isDirectory = existsSync(full) && statSync(full).isDirectory();
  const stamp = new Date().toISOString().replaceAll(/[:.]/g, "-");
  const file = isDirectory ? path.join(full, `kontor-${stamp}.tar`) : full;
  if (existsSync(file)) throw new Failure(`${file} is there already.`, { hint: "Name a new file." });
  const directory = path.dirname(file);
  if (!existsSync(directory)) throw new Failure(`There is no directory ${directory}.`, { hint: "Make it." });
  const hostId = hostIdOf(config);
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
  const hostId = hostIdOf(config);
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
  const dump = await withDatabase(config, (connection) =>
    dumpDatabase(connection, path.join(stage, "database")),
  );
  await pack(path.join(stage, "database.tar"), stage, ["database"], { compress: false });
  rmSync(path.join(stage, "database"), { recursive: true });
  await add({ kind: "database", file: "database.tar" });
  database.done();

  const volumes = startStep("Volumes");
  const directories = volumesDirectories(config, hostId);
  const present = new Set<string>();
  for (const [region, directory] of directories) {
    for (const id of existsSync(directory) ? readdirSync(directory) : []) {
      // A name with a dot belongs to a volume that is being created.
      if (!/^[A-Za-z0-9_-]+$/.test(id)) continue;
      volumes.update(id);
      const copy = path.join(stage, "volume", id);
      mkdirSync(copy, { recursive: true, mode: 0o700 });
      const copied = await copyVolume(path.join(directory, id, image), path.join(copy, image));
      if (copied === "copied") {
        const file = `volume.${region}.${id}.tar.gz`;
        await pack(path.join(stage, file), path.join(stage, "volume"), [id]);
        await add({ kind: "volume", region, file });
        present.add(`${region}/${id}`);
      } else if (copied !== "missing") {
        lost.push(`volume ${id}: ${copied.failure}`);
        present.add(`${region}/${id}`);
      }
      rmSync(path.join(stage, "volume"), { recursive: true });
    }
  }
  if (dump.volumes.some(({ id, region }) => !present.has(`${region}/${id}`))) {
    const absent = absentVolumes(dump.volumes, present, await withDatabase(config, listVolumes));
    manifest.missing.push(...absent.deleted);
    lost.push(...absent.lost);
  }
  volumes.done();

  const files = startStep("Files");
  if (existsSync(path.join(dataDir, "git"))) {
    files.update("repositories");
    await packRepositories(dataDir, path.join(stage, "git.tar.gz"));
    await add({ kind: "files", file: "git.tar.gz" });
  }
  const names = readdirSync(dataDir).filter((name) => !leftOut.includes(name) && !name.includes(".tmp-"));
  // A region may lie below the data directory, and its volumes have their own parts.
  const inside = [...directories.values()].filter((directory) => isBelow(directory, dataDir));
  const exclude = [
    ...leftOutBelow,
    ...ownMounts(realpathSync(dataDir)),
    ...inside.map((directory) => path.relative(dataDir, directory)),
  ].flatMap((name) => [`${name}/*`, `${name.replace("/", "/./")}/*`]);
  files.update("images, snapshots, blobs, keys and settings");
  const links = followLinks(dataDir, names);
  lost.push(...links.lost);
  const packed = await pack(path.join(stage, "files.tar.gz"), dataDir, links.names, { exclude });
  // A log may be truncated at any moment, but a file that a row names is not written again.
  lost.push(
    ...packed.shrunk
      .filter((name) => !name.startsWith("logs/"))
      .map((name) => `file ${name}: it was cut while it was read; run the backup again`),
  );
  await add({ kind: "files", file: "files.tar.gz" });
  if (links.files.length > 0) {
    await pack(path.join(stage, linkedFiles), dataDir, links.files, { followLinks: true });
    await add({ kind: "files", file: linkedFiles });
  }
  const blobs = externalBlobs(config);
  if (blobs !== null && existsSync(blobs)) {
    files.update("backups of add-ons");
    await pack(path.join(stage, "blobs.tar.gz"), blobs, ["."]);
    await add({ kind: "blobs", file: "blobs.tar.gz" });
  }
  files.done();

  manifest.lost = lost;
  writeFileSync(path.join(stage, manifestFile), JSON.stringify(manifest, null, 1), { mode: 0o600 });
  await append(archive, stage, manifestFile);
  return { manifest, lost };
}

const image = "volume.ext4";

async function packRepositories(dataDir: string, target: string): Promise<void> {
  for (let attempt = 1; attempt <= gitAttempts; attempt += 1) {
    rmSync(target, { force: true });
    if ((await pack(target, dataDir, followLinks(dataDir, ["git"]).names)).isWhole) return;
  }
  throw new Failure("Repositories changed each time they were read.", { hint: "Run the backup again." });
}

/** Starts the embedded PostgreSQL if it does not run, and stops it again afterwards. */
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
