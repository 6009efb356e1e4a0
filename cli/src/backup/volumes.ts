/**
 * Copies volumes while machines write to them. The filesystem is frozen during the copy, so the copy is as clean as an
 * unmounted filesystem. A volume without a machine is copied directly.
 */
import { closeSync, existsSync, fstatSync, openSync, readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Volume } from "@kontor/server/db/dump.ts";
import { run, startGuard } from "../lib/run.ts";
import { unescapeOctal } from "./places.ts";

export type CopyOutcome = "copied" | "missing" | { failure: string };

/** Longest freeze in seconds. Writers wait while the filesystem is frozen, so a longer copy is aborted. */
const frozenMaxSeconds = 300;
const guard = path.join(import.meta.dirname, "freeze-guard.ts");
/** Largest number of attempts to copy an unmounted volume that changes during the copy. */
const maxAttempts = 3;
/**
 * Wait between two checks of a volume. A mount and an unmount take milliseconds between the loop device and the mount
 * point.
 */
const settleMs = 100;
const maxLooks = 50;

/** Copies the image of one volume. Returns `missing` if the volume is deleted during the copy. */
export async function copyVolume(
  image: string,
  target: string,
  options: { maxSeconds?: number; maxLooks?: number } = {},
): Promise<CopyOutcome> {
  const maxSeconds = options.maxSeconds ?? frozenMaxSeconds;
  const copy = async (): Promise<CopyOutcome> => {
    const argv = ["cp", "--reflink=auto", "--sparse=always", "--", image, target] as const;
    const { code, output } = await run(argv, { timeoutMs: maxSeconds * 1000 });
    if (code === 0) return "copied";
    if (code === 137) return { failure: `copying it took longer than ${maxSeconds} s` };
    return existsSync(image) ? { failure: output.trim() || `cp ended with ${code}` } : "missing";
  };
  for (let attempt = 0; attempt < maxAttempts; attempt += 1) {
    const directory = await openMount(image, options.maxLooks ?? maxLooks);
    if (directory === "hidden") {
      return { failure: "it is mounted where this command cannot see it; run the backup beside the server" };
    }
    if (directory !== undefined) return copyFrozen(image, directory, maxSeconds, copy);
    const before = stampOf(image);
    if (before === undefined) return "missing";
    const copied = await copy();
    // A mount during the copy changes the image: it writes at least the mount time.
    if (copied !== "copied" || (devicesOf(image).length === 0 && stampOf(image) === before)) return copied;
  }
  return existsSync(image) ? { failure: "it changed each time it was copied" } : "missing";
}

/**
 * Returns the volumes that the backup lacks: compares the volumes of the dump with those that were copied (`region/id`)
 * and those that exist now. A volume whose row still exists must have its bytes in the backup.
 */
export function absentVolumes(
  dumped: readonly Volume[],
  copied: ReadonlySet<string>,
  now: readonly Volume[],
): { deleted: string[]; lost: string[] } {
  const absent = dumped.filter(({ id, region }) => !copied.has(`${region}/${id}`));
  const regionNow = new Map(now.map(({ id, region }) => [id, region]));
  const deleted = absent.filter(({ id }) => !regionNow.has(id)).map(({ id }) => id);
  const lost = absent.flatMap(({ id, region }) => {
    const current = regionNow.get(id);
    if (current === undefined) return [];
    return current === region
      ? [
          `volume ${id}: its data is not in the volume directory of the region ${region}; is that disk mounted?`,
        ]
      : [`volume ${id}: it was moved to the region ${current} meanwhile; run the backup again`];
  });
  return { deleted, lost };
}

async function copyFrozen(
  image: string,
  directory: number,
  maxSeconds: number,
  copy: () => Promise<CopyOutcome>,
): Promise<CopyOutcome> {
  try {
    const process_ = startGuard([process.execPath, guard, String(maxSeconds)], directory);
    if (!(await process_.frozen)) {
      // The guard was killed after the freeze, before it reported the freeze.
      await process_.thaw();
      return existsSync(image) ? { failure: "its filesystem cannot be frozen" } : "missing";
    }
    const copied = await copy();
    const wasWhole = await process_.thaw();
    return copied === "copied" && !wasWhole
      ? { failure: `copying it took longer than ${maxSeconds} s` }
      : copied;
  } finally {
    closeSync(directory);
  }
}

/** Returns a text that changes with the content of an image; undefined if there is no image. */
function stampOf(image: string): string | undefined {
  const found = statSync(image, { throwIfNoEntry: false, bigint: true });
  return found && [found.ino, found.size, found.mtimeNs, found.ctimeNs].join(" ");
}

/**
 * Opens the root directory of the filesystem mounted from `image`. Returns undefined if the image is not mounted.
 * Returns "hidden" if a loop device uses the image and its mount point is not in this mount namespace. The opened
 * device is compared, because after an unmount the path would be on the host's own disk.
 */
async function openMount(image: string, looks: number): Promise<number | "hidden" | undefined> {
  for (let look = 0; look < looks; look += 1) {
    const devices = devicesOf(image);
    if (devices.length === 0) return undefined;
    for (const device of devices) {
      const place = mountPointOf(readFileSync("/proc/self/mountinfo", "utf8"), device);
      if (place === undefined) continue;
      try {
        const directory = openSync(place, "r");
        if (isDevice(fstatSync(directory).dev, device)) return directory;
        closeSync(directory);
      } catch {
        // The image was unmounted since mountinfo was read.
      }
    }
    await delay(settleMs);
  }
  return "hidden";
}

/** Lists the loop devices of a file, such as `7:3` (loop(4)). */
function devicesOf(image: string): string[] {
  const own = statSync(image, { throwIfNoEntry: false });
  if (own === undefined) return [];
  const { ino, dev } = own;
  return readdirSync("/sys/block").flatMap((name) => {
    try {
      const file = readFileSync(`/sys/block/${name}/loop/backing_file`, "utf8").trim();
      const found = statSync(file);
      if (found.ino !== ino || found.dev !== dev) return [];
      return [readFileSync(`/sys/block/${name}/dev`, "utf8").trim()];
    } catch {
      return [];
    }
  });
}

/** Finds the mount point of a device in the text of /proc/self/mountinfo (proc_pid_mountinfo(5)). */
export function mountPointOf(mountinfo: string, device: string): string | undefined {
  for (const line of mountinfo.split("\n")) {
    const [, , number, root, place] = line.split(" ");
    if (number !== device || root !== "/" || place === undefined) continue;
    return unescapeOctal(place);
  }
  return undefined;
}

/** Returns whether a `stat` device number, encoded by glibc's makedev(3), equals `major:minor`. */
function isDevice(dev: number, device: string): boolean {
  const number = BigInt(dev);
  const major = ((number >> 8n) & 0xfffn) | ((number >> 32n) & ~0xfffn);
  const minor = (number & 0xffn) | ((number >> 12n) & ~0xffn);
  return `${major}:${minor}` === device;
}
