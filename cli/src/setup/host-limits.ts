/**
 * Limits that the kernel counts for each user of the host, where its defaults are too low for many programs on one
 * machine. Each native machine has users of its own, so what one uses up is its own; these are how much that is, and what
 * is left for the host's own services. Raised, never lowered, and kept over a reboot where the host has sysctl.d(5).
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { isRoot } from "../lib/places.ts";
import type { SetupStep } from "./setup.ts";

interface HostLimit {
  /** As sysctl(8) names it. */
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
const kept = "/etc/sysctl.d/60-kontor.conf";

/** Limits below what is wanted. Zero of `pipe-user-pages-soft` stands for none. */
export function lowLimits(root = "/proc/sys"): LowLimit[] {
  return hostLimits.flatMap((limit) => {
    const value = read(file(limit.name, root));
    return value === undefined || value === 0 || value >= limit.atLeast ? [] : [{ ...limit, value }];
  });
}

/** Raises what is low where that is allowed: in a container the values are mostly another's, and `doctor` shows them. */
export function hostLimitsStep(root = "/proc/sys", keepAt = kept): SetupStep {
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

/** Adds lines for a reboot. Only what was raised: elsewhere the kernel's own default may be higher on another day. */
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

/** Tried with the value that is there: access(2) does not know what a kernel value refuses. */
function isWritable(path: string): boolean {
  try {
    writeFileSync(path, readFileSync(path));
    return true;
  } catch {
    return false;
  }
}
