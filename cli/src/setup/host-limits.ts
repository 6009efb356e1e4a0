/**
 * Limits that the kernel applies to each user of the host, and whose defaults are too low for many programs on one
 * machine. Each native machine has its own users, so these limits apply to each machine, and to the host's own
 * services. The set-up raises them and never lowers them. The raised limits survive a reboot if the host has
 * sysctl.d(5).
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { isRoot } from "../lib/places.ts";
import type { SetupStep } from "./setup.ts";

interface HostLimit {
  /** Name of the limit for sysctl(8). */
  name: string;
  atLeast: number;
  why: string;
}

const hostLimits: readonly HostLimit[] = [
  { name: "fs.inotify.max_user_instances", atLeast: 1024, why: "each program that watches files has one" },
  { name: "fs.inotify.max_user_watches", atLeast: 524_288, why: "each watched directory is one" },
  { name: "fs.pipe-user-pages-soft", atLeast: 16_384, why: "pipes above it hold two pages" },
  { name: "kernel.keys.maxkeys", atLeast: 1000, why: "each container has a keyring" },
  { name: "kernel.keys.maxbytes", atLeast: 100_000, why: "keyrings take bytes" },
];

export interface LowLimit extends HostLimit {
  value: number;
}

const file = (name: string, root: string) => `${root}/${name.replaceAll(".", "/")}`;
export const keptLimits = "/etc/sysctl.d/60-kontor.conf";

/** Returns the limits below their minimum. Zero in `pipe-user-pages-soft` means unlimited. */
export function lowLimits(root = "/proc/sys"): LowLimit[] {
  return hostLimits.flatMap((limit) => {
    const value = read(file(limit.name, root));
    return value === undefined || value === 0 || value >= limit.atLeast ? [] : [{ ...limit, value }];
  });
}

/**
 * Returns the step that raises low limits that are writable. In a container most limits belong to the host, and
 * `doctor` lists them.
 */
export function hostLimitsStep(root = "/proc/sys", keepAt = keptLimits): SetupStep {
  const raisable = () => (isRoot() ? lowLimits(root).filter(({ name }) => isWritable(file(name, root))) : []);
  return {
    title: "Host limits",
    needsRoot: true,
    missing: async () =>
      raisable().map(({ name, value, atLeast, why }) => ({ what: `${name} ${value} → ${atLeast}`, why })),
    async install() {
      const raised = raisable();
      for (const { name, atLeast } of raised) writeFileSync(file(name, root), String(atLeast));
      keep(raised, keepAt);
    },
  };
}

/** Adds lines for the next boot, only for raised limits: for other limits, a later kernel may have a higher default. */
function keep(raised: readonly HostLimit[], path: string): void {
  if (!existsSync(dirname(path))) return;
  const before = existsSync(path) ? readFileSync(path, "utf8") : "# Written by kontor's set-up.\n";
  const lines = raised.filter(({ name }) => !before.includes(`${name} =`));
  const text = lines.map(({ name, atLeast }) => `${name} = ${atLeast}\n`).join("");
  if (text !== "") writeFileSync(path, before + text);
}

function read(path: string): number | undefined {
  try {
    return Number(readFileSync(path, "utf8").trim());
  } catch {
    return undefined;
  }
}

/** Returns whether the kernel accepts a write: writes the current value back, because access(2) does not show this. */
function isWritable(path: string): boolean {
  try {
    writeFileSync(path, readFileSync(path));
    return true;
  } catch {
    return false;
  }
}
