/** Places of an installation's files: below the data directory, and elsewhere by configuration. */
import { readFileSync } from "node:fs";
import path from "node:path";
import type { Config } from "@kontor/server/config.ts";
import { regionsOf } from "@kontor/server/machines/regions.ts";

/** Region → the directory of its volumes; the same as the server's own (server/src/machines/open.ts). */
export function volumesDirectories(config: Config, hostId: string): ReadonlyMap<string, string> {
  return new Map(
    regionsOf(config).map(({ code, directory }) => [
      code,
      directory === null ? path.join(config.dataDir, "volumes", code) : path.join(directory, hostId),
    ]),
  );
}

/** The directory of add-on backups where it is not below the data directory; null otherwise. */
export function externalBlobs({ dataDir, backupsStore, backupsDirectory }: Config): string | null {
  if (backupsStore === "s3" || backupsDirectory === null) return null;
  return isBelow(path.resolve(backupsDirectory), path.resolve(dataDir)) ? null : backupsDirectory;
}

export function isBelow(inner: string, outer: string): boolean {
  return inner === outer || inner.startsWith(outer.endsWith("/") ? outer : `${outer}/`);
}

/** Mount points that Kontor made below its data directory, relative to it. A disk that an operator mounted is data. */
export function ownMounts(
  dataDir: string,
  mountinfo = readFileSync("/proc/self/mountinfo", "utf8"),
): string[] {
  return mountinfo.split("\n").flatMap((line) => {
    const [before = "", after = ""] = line.split(" - ");
    const place = before.split(" ")[4] ?? "";
    const [type = "", source = ""] = after.split(" ");
    const isMade = ["overlay", "tmpfs", "proc", "sysfs"].includes(type) || source.startsWith("/dev/loop");
    const relative = path.relative(dataDir, place);
    return isMade && isBelow(place, dataDir) && /^(machines|images|oci|work)\/./.test(relative)
      ? [relative]
      : [];
  });
}
