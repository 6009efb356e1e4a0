/**
 * `kontor restore`: a backup becomes the installation of an empty data directory and an empty database. Everything that
 * can be refused is refused before anything is changed; a restore that fails takes back what it made, and one that is
 * killed leaves a mark that no server starts on.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { type Config, loadConfig } from "@kontor/server/config.ts";
import { ensureEmbedded, stopEmbedded } from "@kontor/server/db/embedded.ts";
import { loadDatabase, readDump, refuseFullDatabase, restoreMark } from "@kontor/server/db/load.ts";
import { type Manifest, manifestFile, parseManifest, type Part, sha256, unpack } from "../backup/parts.ts";
import { externalBlobs, volumesDirectories } from "../backup/places.ts";
import { Failure } from "../lib/failure.ts";
import { dataDirectory, isRoot } from "../lib/places.ts";
import { run } from "../lib/run.ts";
import { startStep } from "../lib/steps-view.ts";
import { readConfig } from "./config.ts";

const stageName = ".restoring";

export async function restore(file: string, options: { data?: string }): Promise<void> {
  if (!isRoot()) throw new Failure("A restore gives files their owners back, which needs root.");
  const archive = path.resolve(file);
  if (!existsSync(archive)) throw new Failure(`There is no file ${archive}.`);
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
    await stopEmbedded(dataDir);
    for (const directory of [...made, dataDir]) empty(directory);
    throw error;
  }
  process.stdout.write(`Restored into ${dataDir}. Start it with: kontor up --data ${dataDir}\n`);
}

async function fill(archive: string, dataDir: string, stage: string, made: string[]): Promise<void> {
  const checking = startStep("Checksums");
  const { manifest, stagedConfig } = await check(archive, stage);
  checking.done(`${manifest.parts.length} parts`);
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

/** Unpacks the archive into the stage, compares every part with its checksum, and reads the settings and the dump. */
async function check(
  archive: string,
  stage: string,
): Promise<{ manifest: Manifest; stagedConfig: (dataDir: string) => Config }> {
  const { code, output } = await run([
    "tar",
    "--extract",
    `--file=${archive}`,
    "--no-same-owner",
    `--directory=${stage}`,
  ]);
  const manifestAt = path.join(stage, manifestFile);
  if (code !== 0 || !existsSync(manifestAt)) {
    throw new Failure(`${archive} is no whole backup.`, { hint: output.slice(-500).trim() });
  }
  const manifest = parseManifest(readFileSync(manifestAt, "utf8"));
  for (const part of manifest.parts) {
    const staged = path.join(stage, part.file);
    if (existsSync(staged) && (await sha256(staged)) === part.sha256) continue;
    throw new Failure(`${part.file} in ${archive} is damaged.`, { hint: "Restore from another backup." });
  }
  await unpack(path.join(stage, "database.tar"), stage);
  await readDump(path.join(stage, "database"));
  // The settings decide where the rest goes, so they are read before anything is put in its place.
  const settings = path.join(stage, "settings");
  mkdirSync(settings);
  await run([
    "tar",
    "--extract",
    `--file=${path.join(stage, "files.tar.gz")}`,
    `--directory=${settings}`,
    "kontor.toml",
  ]);
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

/** Removes everything in a directory that was empty before; a new disk's own lost+found stays. */
function empty(directory: string): void {
  for (const name of existsSync(directory) ? readdirSync(directory) : []) {
    if (name !== "lost+found") rmSync(path.join(directory, name), { recursive: true, force: true });
  }
}

/** An error that says what to do is no defect. */
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
