/**
 * Copies of volumes that machines write to: the filesystem is frozen while its image is copied, so the copy is as clean
 * as one that was unmounted. A volume that no machine has is copied as it is.
 */
import { closeSync, existsSync, fstatSync, openSync, readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { run, startGuard } from "../lib/run.ts";

export type Copied = "copied" | "missing" | { failure: string };

/** What writes to a frozen filesystem waits, so a copy that takes longer than this is given up. */
const frozenMaxSeconds = 300;
const guard = path.join(import.meta.dirname, "freeze-guard.ts");

/** Copies the image of one volume; `missing` where it was deleted meanwhile. */
export async function copyVolume(
  image: string,
  target: string,
  options: { maxSeconds?: number } = {},
): Promise<Copied> {
  const maxSeconds = options.maxSeconds ?? frozenMaxSeconds;
  const copy = async (): Promise<Copied> => {
    const argv = ["cp", "--reflink=auto", "--sparse=always", "--", image, target] as const;
    const { code, output } = await run(argv, { timeoutMs: maxSeconds * 1000 });
    if (code === 0) return "copied";
    return existsSync(image) ? { failure: output.trim() || `cp ended with ${code}` } : "missing";
  };
  if (!existsSync(image)) return "missing";
  const directory = openMount(image);
  if (directory === undefined) {
    const copied = await copy();
    // Mounted in the meantime: the copy may be of two moments.
    const now = openMount(image);
    if (now === undefined) return copied;
    closeSync(now);
    return copyVolume(image, target, options);
  }
  try {
    const process_ = startGuard([process.execPath, guard, String(maxSeconds)], directory);
    if (!(await process_.frozen)) {
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

/**
 * An open directory of the filesystem that is mounted from `image`; undefined where none is. The device of what was
 * opened is compared: between the look and the opening, it may have been unmounted, and then the path is the host's own
 * disk.
 */
function openMount(image: string): number | undefined {
  for (const device of devicesOf(image)) {
    const place = mountPointOf(readFileSync("/proc/self/mountinfo", "utf8"), device);
    if (place === undefined) continue;
    try {
      const directory = openSync(place, "r");
      if (isDevice(fstatSync(directory).dev, device)) return directory;
      closeSync(directory);
    } catch {
      // It was unmounted in this moment.
    }
  }
  return undefined;
}

/** Loop devices of a file, as `7:3` (loop(4)). */
function devicesOf(image: string): string[] {
  const { ino, dev } = statSync(image);
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

/** The mount point of a device, from the text of /proc/self/mountinfo (proc_pid_mountinfo(5)). */
export function mountPointOf(mountinfo: string, device: string): string | undefined {
  for (const line of mountinfo.split("\n")) {
    const [, , number, root, place] = line.split(" ");
    if (number !== device || root !== "/" || place === undefined) continue;
    return place.replaceAll(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)));
  }
  return undefined;
}

/** makedev(3) of glibc, as `stat` reports a device. */
function isDevice(dev: number, device: string): boolean {
  const number = BigInt(dev);
  const major = ((number >> 8n) & 0xfffn) | ((number >> 32n) & ~0xfffn);
  const minor = (number & 0xffn) | ((number >> 12n) & ~0xffn);
  return `${major}:${minor}` === device;
}
