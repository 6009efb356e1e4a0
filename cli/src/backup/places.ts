/** Directories of an installation's files, below the data directory or configured elsewhere. */
import { lstatSync, readdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import path from "node:path";
import type { Config } from "@kontor/server/config.ts";
import { regionsOf } from "@kontor/server/lib/regions.ts";
import { Failure } from "../lib/failure.ts";

/** Maps each region to its volume directory, as the server does (server/src/machines/open.ts). */
export function volumesDirectories(config: Config, hostId: string): ReadonlyMap<string, string> {
  return new Map(
    regionsOf(config).map(({ code, directory }) => [
      code,
      directory === null ? path.join(config.dataDir, "volumes", code) : path.join(directory, hostId),
    ]),
  );
}

/** Returns the directory of add-on backups if it is outside of the data directory, else null. */
export function externalBlobs({ dataDir, backupsStore, backupsDirectory }: Config): string | null {
  if (backupsStore === "s3" || backupsDirectory === null) return null;
  return isBelow(path.resolve(backupsDirectory), path.resolve(dataDir)) ? null : backupsDirectory;
}

export function isBelow(inner: string, outer: string): boolean {
  return inner === outer || inner.startsWith(outer.endsWith("/") ? outer : `${outer}/`);
}

/**
 * Lists Kontor's own mount points, relative to the data directory. A disk that the operator mounted is not included.
 */
export function ownMounts(
  dataDir: string,
  mountinfo = readFileSync("/proc/self/mountinfo", "utf8"),
): string[] {
  return mountinfo.split("\n").flatMap((line) => {
    const [before = "", after = ""] = line.split(" - ");
    const place = unescapeOctal(before.split(" ")[4] ?? "");
    const [type = "", source = ""] = after.split(" ");
    const isMade = ["overlay", "tmpfs", "proc", "sysfs"].includes(type) || source.startsWith("/dev/loop");
    const relative = path.relative(dataDir, place);
    return isMade && isBelow(place, dataDir) && /^(machines|images|oci|work)\/./.test(relative)
      ? [relative]
      : [];
  });
}

/** Decodes a path of mountinfo, which writes a space as `\040` (proc_pid_mountinfo(5)). */
export function unescapeOctal(text: string): string {
  return text.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)));
}

export interface Links {
  /** Arguments for tar(1): `name/.` packs the content of a directory that `name` is a symlink to. */
  names: string[];
  /** Symlinks to files, to pack as the files themselves. */
  files: string[];
  /** Symlinks one level deeper whose content is not packed, each with its reason. */
  lost: string[];
}

/**
 * Sorts entries of a directory by how they are packed. An operator may have moved a large directory to another disk, or
 * a settings file to /etc, and left a symlink. A backup that contains only the symlink restores no content.
 */
export function followLinks(directory: string, entries: readonly string[]): Links {
  const root = realpathSync(directory);
  const links: Links = { names: [], files: [], lost: [] };
  for (const name of entries) {
    const place = path.join(directory, name);
    const isLink = lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink() === true;
    const target = statSync(place, { throwIfNoEntry: false });
    if (isLink && target?.isFile()) links.files.push(name);
    else links.names.push(isLink && target?.isDirectory() ? `${name}/.` : name);
    if (!target?.isDirectory()) continue;
    for (const entry of readdirSync(place, { withFileTypes: true })) {
      if (!entry.isSymbolicLink()) continue;
      const inner = path.join(place, entry.name);
      if (!statSync(inner, { throwIfNoEntry: false })?.isDirectory()) continue;
      const leadsTo = realpathSync(inner);
      if (isBelow(leadsTo, root) || isBelow(leadsTo, realpathSync(place))) continue;
      links.lost.push(`${inner}: a symlink to ${leadsTo} is not followed; mount the directory there instead`);
    }
  }
  return links;
}

/**
 * Refuses symlinks in place of directories. A backup never has such symlinks in the data directory itself, and a later
 * part would be written to the symlink's target.
 */
export function refuseLinkedDirectories(dataDir: string): void {
  for (const entry of readdirSync(dataDir, { withFileTypes: true })) {
    const place = path.join(dataDir, entry.name);
    if (!entry.isSymbolicLink() || !statSync(place, { throwIfNoEntry: false })?.isDirectory()) continue;
    throw new Failure(`The backup has a symlink in the place of the directory ${entry.name}.`, {
      hint: "Restore from another backup.",
    });
  }
}
