/**
 * Writes and reads the parts of a backup. A backup is one tar file: each part is a tar file in it, and `manifest.json`
 * lists the parts with their checksums. The manifest comes last, so a file without it is incomplete.
 */
import { createHash } from "node:crypto";
import { createReadStream, lstatSync } from "node:fs";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import { Failure } from "../lib/failure.ts";
import { run } from "../lib/run.ts";

export interface Part {
  kind: "database" | "files" | "blobs" | "volume";
  /** Name of the part in the archive. */
  file: string;
  sha256: string;
  /** Region of the part's volume. */
  region?: string;
}

export interface Manifest {
  format: 1;
  made_at: string;
  host_id: string;
  parts: Part[];
  /** Volumes that were deleted while the backup ran. */
  missing: string[];
  /** Content that the backup lacks, each with its reason. */
  lost?: string[];
}

export const manifestFile = "manifest.json";
/** Name of the part with files that are symlinks in the data directory. */
export const linkedFiles = "links.tar.gz";

/** Options of tar that keep numeric owners, holes, and the extended attributes that image layers need. */
const faithful = ["--numeric-owner", "--sparse", "--xattrs", "--xattrs-include=*", "--acls"];

export interface PackResult {
  /** False if a file changed or disappeared during the read (exit code 1 of tar(1)). */
  isWhole: boolean;
  /** Files that shrank during the read. Their copies end in zeros. */
  shrunk: string[];
}

/** Packs `names` of a directory. With `followLinks`, packs the targets of symlinks in place of the symlinks. */
export async function pack(
  target: string,
  directory: string,
  names: readonly string[],
  options: { exclude?: readonly string[]; compress?: boolean; followLinks?: boolean } = {},
): Promise<PackResult> {
  const compress = options.compress === false ? [] : ["--use-compress-program=gzip -1"];
  const exclude = (options.exclude ?? []).map((pattern) => `--exclude=${pattern}`);
  const argv = [
    "tar",
    "--create",
    `--file=${target}`,
    "--format=pax",
    ...faithful,
    ...compress,
    ...(options.followLinks ? ["--dereference"] : []),
    "--anchored",
    "--warning=no-file-ignored",
    ...exclude,
    `--directory=${directory}`,
    "--",
    ...names,
  ] as const;
  const { code, output } = await run(argv, { env: { ...process.env, LC_ALL: "C" } });
  if (code <= 1) return { isWhole: code === 0, shrunk: parseShrunk(output) };
  throw new Failure(`${directory} cannot be packed.`, { hint: output.slice(-2000).trim() });
}

/** Returns the files that, by the messages of tar(1), became shorter during the read. */
export function parseShrunk(output: string): string[] {
  return [...output.matchAll(/^tar: (.*): File shrank by \d+ bytes?; padding with zeros$/gm)].map(
    ([, name = ""]) => name,
  );
}

/** Unpacks a part. */
export async function unpack(archive: string, directory: string): Promise<void> {
  const { code, output } = await run([
    "tar",
    "--extract",
    `--file=${archive}`,
    "--preserve-permissions",
    "--same-owner",
    ...faithful,
    `--directory=${directory}`,
  ]);
  if (code !== 0) throw new Failure(`${archive} cannot be unpacked.`, { hint: output.slice(-2000).trim() });
}

/** Extracts regular files of the backup by name. Throws if one is missing, or is a link or a device. */
export async function extract(archive: string, directory: string, names: readonly string[]): Promise<void> {
  const { code, output } = await run([
    "tar",
    "--extract",
    `--file=${archive}`,
    "--no-same-owner",
    `--directory=${directory}`,
    "--",
    ...names,
  ]);
  const isFile = (name: string) =>
    lstatSync(path.join(directory, name), { throwIfNoEntry: false })?.isFile() === true;
  if (code === 0 && names.every(isFile)) return;
  throw new Failure(`${archive} is not a complete backup.`, { hint: output.slice(-500).trim() });
}

/** Appends one file to the archive of the backup. */
export async function append(archive: string, directory: string, name: string): Promise<void> {
  const { code, output } = await run([
    "tar",
    "--append",
    `--file=${archive}`,
    `--directory=${directory}`,
    "--",
    name,
  ]);
  if (code !== 0) throw new Failure(`${archive} cannot be written.`, { hint: output.slice(-2000).trim() });
}

export async function sha256(file: string): Promise<string> {
  const hash = createHash("sha256");
  await pipeline(createReadStream(file), hash);
  return hash.digest("hex");
}

/** Parses a manifest. Throws if the text is not a manifest. */
export function parseManifest(text: string): Manifest {
  const manifest = parseObject(text);
  if (typeof manifest.format === "number" && manifest.format > 1) {
    throw new Failure("The backup is of a newer Kontor.", { hint: "Restore it with that version." });
  }
  const isPart = (part: Partial<Part> | null) =>
    kinds.includes(part?.kind ?? "") &&
    isName(part?.file) &&
    /^[0-9a-f]{64}$/.test(part.sha256 ?? "") &&
    (part.region === undefined || isName(part.region));
  if (
    manifest.format !== 1 ||
    !isName(manifest.host_id) ||
    !Array.isArray(manifest.parts) ||
    !manifest.parts.every(isPart)
  ) {
    throw new Failure("The file is no backup that this Kontor can read.");
  }
  return manifest as Manifest;
}

const kinds: readonly string[] = ["database", "files", "blobs", "volume"] satisfies Part["kind"][];

/** True for a valid name of a region or volume. The name becomes part of a path, so it has no slash. */
function isName(name: unknown): name is string {
  return typeof name === "string" && /^[A-Za-z0-9][A-Za-z0-9_.-]*$/.test(name);
}

function parseObject(text: string): Partial<Manifest> {
  try {
    return (JSON.parse(text) as Partial<Manifest> | null) ?? {};
  } catch {
    return {};
  }
}
