/**
 * A backup is one tar file of parts, each a tar file of its own, and `manifest.json`, which lists them with their
 * checksums and comes last: a file without it is not whole.
 */
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { Failure } from "../lib/failure.ts";
import { run } from "../lib/run.ts";

export interface Part {
  kind: "database" | "files" | "blobs" | "volume";
  /** The member of the archive. */
  file: string;
  sha256: string;
  /** Of a volume. */
  region?: string;
}

export interface Manifest {
  format: 1;
  made_at: string;
  host_id: string;
  parts: Part[];
  /** Volumes that were deleted while the backup ran. */
  missing: string[];
}

export const manifestFile = "manifest.json";

/** Owners by number, holes as holes, and the attributes that layers of images are made of. */
const faithful = ["--numeric-owner", "--sparse", "--xattrs", "--xattrs-include=*", "--acls"];

/** Packs `names` of a directory. Code 1 of tar(1): a file changed or went while it was read. */
export async function pack(
  target: string,
  directory: string,
  names: readonly string[],
  options: { exclude?: readonly string[]; compress?: boolean } = {},
): Promise<"whole" | "changed"> {
  const compress = options.compress === false ? [] : ["--use-compress-program=gzip -1"];
  const exclude = (options.exclude ?? []).map((pattern) => `--exclude=${pattern}`);
  const { code, output } = await run([
    "tar",
    "--create",
    `--file=${target}`,
    "--format=pax",
    ...faithful,
    ...compress,
    "--anchored",
    "--warning=no-file-ignored",
    ...exclude,
    `--directory=${directory}`,
    "--",
    ...names,
  ]);
  if (code === 0) return "whole";
  if (code === 1) return "changed";
  throw new Failure(`${directory} cannot be packed.`, { hint: output.slice(-2000).trim() });
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

/** Reads a manifest, and fails where the text is none. */
export function parseManifest(text: string): Manifest {
  const manifest = JSON.parse(text) as Partial<Manifest>;
  const name = /^[A-Za-z0-9][A-Za-z0-9_.-]*$/;
  if (
    manifest.format !== 1 ||
    !Array.isArray(manifest.parts) ||
    !manifest.parts.every(({ file, region = "x" }) => name.test(file) && name.test(region))
  ) {
    throw new Failure("The file is no backup that this Kontor can read.");
  }
  return manifest as Manifest;
}
