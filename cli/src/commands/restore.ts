/**
 * `kontor restore` writes a backup into an empty data directory and an empty database. The command checks the backup
 * before it changes anything. A failed restore removes what it created. A killed restore leaves a mark, and no server
 * starts while the mark exists.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { type Config, loadConfig } from "@kontor/server/config.ts";
import { ensureEmbedded, stopEmbedded } from "@kontor/server/db/embedded/ensure-embedded.ts";
import { loadDatabase, readDump, refuseFullDatabase, restoreMark } from "@kontor/server/db/load.ts";
import {
  extract,
  linkedFiles,
  type Manifest,
  manifestFile,
  parseManifest,
  type Part,
  sha256,
  unpack,
} from "../backup/parts.ts";
import { externalBlobs, refuseLinkedDirectories, volumesDirectories } from "../backup/places.ts";
import { Failure } from "../lib/failure.ts";
import { dataDirectory, isRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { startStep } from "../lib/steps-view.ts";
import { readConfig } from "./config.ts";

const stageName = ".restoring";
/** Largest manifest in bytes. A manifest has a line for each volume. */
const manifestMaxBytes = 64 * 1024 * 1024;

export async function restore(file: string, options: { data?: string }): Promise<void> {
  if (!isRoot()) throw new Failure("A restore sets the owners of files. Run it as root.");
  const archive = path.resolve(file);
  if (!existsSync(archive)) throw new Failure(`The file ${archive} does not exist. Name a backup file.`);
  const dataDir = dataDirectory(options.data);
  refuseFullDirectory(dataDir, "data directory");
  const { databaseUrl } = readConfig({ data: dataDir });
  if (databaseUrl !== null) await refusal(() => refuseFullDatabase({ url: databaseUrl }));
  const stage = path.join(dataDir, stageName);
  mkdirSync(dataDir, { recursive: true, mode: 0o711 });
  mkdirSync(stage, { mode: 0o700 });
  writeFileSync(path.join(dataDir, restoreMark), "");
  const made: string[] = [];
  try {
    await refusal(() => fill(archive, dataDir, stage, made));
  } catch (error) {
    try {
      await stopEmbedded(dataDir);
    } finally {
      for (const directory of [...made, dataDir]) empty(directory);
    }
    throw error;
  }
  process.stdout.write(`Restored into ${dataDir}. Start it with: kontor up --data ${dataDir}\n`);
}

async function fill(archive: string, dataDir: string, stage: string, made: string[]): Promise<void> {
  const checking = startStep("Checksums");
  const { manifest, stagedConfig } = await check(archive, stage);
  checking.done(`${manifest.parts.length} parts`);
  for (const item of manifest.lost ?? []) process.stdout.write(`· the backup lacks ${item}\n`);
  const config = stagedConfig(dataDir);
  const { databaseUrl } = config;
  if (databaseUrl !== null) await refuseFullDatabase({ url: databaseUrl });
  const directories = volumesDirectories(config, manifest.host_id);
  const blobs = externalBlobs(config);
  const places = manifest.parts.map((part) => ({ part, directory: placeOf(part) }));
  function placeOf({ kind, region }: Part): string | null {
    if (kind === "files") return dataDir;
    if (kind === "database") return null;
    if (kind === "blobs") return blobs ?? path.join(dataDir, "backups");
    const directory = directories.get(region ?? "");
    if (directory !== undefined) return directory;
    throw new Failure(`The backup has volumes of the region ${region}, which is not configured.`, {
      hint: "Set KONTOR_REGIONS as the old host had it.",
    });
  }
  const outside = [...new Set(places.flatMap(({ directory }) => directory ?? []))].filter(
    (directory) => directory !== dataDir && !directory.startsWith(`${dataDir}/`),
  );
  for (const directory of outside) refuseFullDirectory(directory, "directory");
  made.push(...outside);

  const files = startStep("Files");
  for (const { part, directory } of places) {
    if (directory === null) continue;
    files.update(part.file);
    mkdirSync(directory, { recursive: true, mode: 0o711 });
    await unpack(path.join(stage, part.file), directory);
    rmSync(path.join(stage, part.file));
    refuseLinkedDirectories(dataDir);
  }
  files.done();

  const database = startStep("Database");
  const dump = path.join(stage, "database");
  const connection = databaseUrl === null ? (await ensureEmbedded(dataDir)).connection : { url: databaseUrl };
  await loadDatabase(connection, dump, manifest.host_id);
  if (databaseUrl === null) await stopEmbedded(dataDir);
  database.done();
  rmSync(stage, { recursive: true });
  rmSync(path.join(dataDir, restoreMark));
}

/** Unpacks the archive into the stage, checks every checksum, and reads the settings and the dump. */
async function check(
  archive: string,
  stage: string,
): Promise<{ manifest: Manifest; stagedConfig: (dataDir: string) => Config }> {
  await extract(archive, stage, [manifestFile]);
  const manifestAt = path.join(stage, manifestFile);
  if (statSync(manifestAt).size > manifestMaxBytes) throw new Failure(`${archive} is no backup.`);
  const manifest = parseManifest(readFileSync(manifestAt, "utf8"));
  // Parts are extracted by name, so that no other file of the archive reaches the disk.
  await extract(
    archive,
    stage,
    manifest.parts.map((part) => part.file),
  );
  for (const part of manifest.parts) {
    const staged = path.join(stage, part.file);
    if ((await sha256(staged)) === part.sha256) continue;
    throw new Failure(`${part.file} in ${archive} is damaged.`, { hint: "Restore from another backup." });
  }
  await unpack(path.join(stage, "database.tar"), stage);
  await readDump(path.join(stage, "database"));
  // The settings define the target directories, so they are read first.
  const settings = path.join(stage, "settings");
  mkdirSync(settings);
  for (const name of ["files.tar.gz", linkedFiles]) {
    const part = path.join(stage, name);
    if (existsSync(part)) {
      await run(["tar", "--extract", `--file=${part}`, `--directory=${settings}`, "kontor.toml"]);
    }
  }
  return {
    manifest,
    stagedConfig: (dataDir) => Object.freeze({ ...loadConfig({ dataDir: settings }), dataDir }),
  };
}

function refuseFullDirectory(directory: string, noun: string): void {
  const found = existsSync(directory) ? readdirSync(directory).filter((name) => name !== "lost+found") : [];
  if (found.length === 0) return;
  throw new Failure(`The ${noun} ${directory} is not empty: it has ${found[0]}.`, {
    hint: "Give the restore an empty one (--data DIR).",
  });
}

/** Empties a directory that was empty before the restore. Keeps the `lost+found` of a new disk. */
function empty(directory: string): void {
  for (const name of existsSync(directory) ? readdirSync(directory) : []) {
    if (name !== "lost+found") rmSync(path.join(directory, name), { recursive: true, force: true });
  }
}

/** Converts an error that names its cure into a `Failure`, which prints no stack. */
async function refusal<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Error && ["LoadError", "ConfigError"].includes(error.name)) {
      throw new Failure(error.message, {});
    }
    throw error;
  }
}
