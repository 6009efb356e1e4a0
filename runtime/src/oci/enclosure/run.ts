/**
 * Runs a builder in an enclosure (runtime/shim/enclose.c), with its own control group, user range and network, and
 * removes all of them afterwards. The spec limits memory, processors, disk and time. A failed run leaves nothing on the
 * host.
 */
import type { StatsFs } from "node:fs";
import { mkdir, readFile, rm, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Cgroups } from "../../cgroup/cgroups.ts";
import { type LentNetwork, RuntimeError } from "../../driver.ts";
import { run } from "../../exec.ts";
import { UndoStack } from "../../undo.ts";
import { configuration, environment, inside } from "../buildah.ts";
import type { LogLines } from "../log.ts";
import type { UserRanges } from "./user-ranges.ts";

export interface Run {
  group: string;
  /**
   * Workspace store and caches that the run writes. The run only reads the bases, except for a run that imports them.
   */
  store: { home: string; bases: string; isBase: boolean };
  network: LentNetwork | null;
  files: Readonly<Record<string, string>>;
  context?: string;
  memoryBytes: number;
  vcpus: number;
  diskBytes: number;
  timeoutMs: number;
  signal: AbortSignal;
  lines?: LogLines;
}

export interface RunHost {
  cgroups: Cgroups;
  shimBinary: string;
  users: UserRanges;
  /** Paths of the programs that replace programs of /usr, by name. */
  engines: ReadonlyMap<string, string>;
  /** Parent of the runs' directories. The path has no symlinks, like the paths of `Run.store` and the context. */
  builds: string;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/** Exit code of `kontor-shim enclose` when the builder was never started. */
export const NOT_STARTED = 70;
/** Name of the group below the run's own group that contains all processes. */
const LEAF = "builder";
const MEASURE_MS = 2 * 60_000;
const PROCESSES = 1024;
/**
 * Interval between checks of the disk: a build can exceed its limit by the bytes that a fast disk writes in a
 * second.
 */
const WATCH_MS = 1_000;
const DISK_LEFT_BYTES = 1024 ** 3;
/**
 * Smallest number of free inodes. Empty files occupy no bytes, but each uses an inode, which PostgreSQL and all other
 * programs on the disk share.
 */
const INODES_LEFT = 100_000;

export async function runEnclosed(host: RunHost, spec: Run, argv: readonly string[]): Promise<void> {
  const { cgroups, users, log } = host;
  const { home, bases, isBase } = spec.store;
  const directory = join(host.builds, spec.group);
  const undo = new UndoStack();
  const stop = new AbortController();
  const signal = AbortSignal.any([spec.signal, stop.signal]);
  let isFull = false;
  let unmeasured: unknown;
  let watching: Promise<unknown> | undefined;
  try {
    const range = users.lease();
    undo.add("users", async () => range.release());
    undo.add("directory", () => rm(directory, { recursive: true, force: true }));
    await mkdir(join(directory, "root"), { recursive: true, mode: 0o700 });
    for (const path of ["store", "caches"]) await mkdir(join(home, path), { recursive: true, mode: 0o700 });
    const limits = { fileBytes: spec.diskBytes, ...(await stepLimits()) };
    const files = { ...configuration(limits), ...spec.files };
    for (const [name, text] of Object.entries(files))
      await writeFile(join(directory, name), text, { mode: 0o600 });
    undo.add("group", () => cgroups.removeTree(spec.group));
    const { memoryBytes, vcpus } = spec;
    // The kernel kills only the process of a step that uses too much memory, and the builder's error names the step.
    await cgroups.create(spec.group, { memoryBytes, vcpus, maxProcesses: PROCESSES }, "native");
    // Makes a child group for the processes: a group with child groups may contain no process itself (cgroup v2).
    const cgroupProcs = await cgroups.makeLeaf(spec.group, LEAF);
    const { network, context } = spec;
    const enclosure = [
      ["--root", join(directory, "root")],
      ["--first", String(range.first)],
      ["--parent", String(process.pid)],
      ...(network === null ? [] : [["--netns", network.netnsPath, "--resolver", network.resolver]]),
      ...Array.from(host.engines, ([name, path]) => ["--engine", name, path]),
      ...cgroupProcs.map((file) => ["--cgroup", file]),
      [isBase ? "--write" : "--read", inside.bases, join(bases, "store")],
      ...(isBase ? [] : [["--write", inside.store, join(home, "store")]]),
      ["--write", inside.caches, join(home, "caches")],
      ["--write", inside.build, directory],
      ...(context === undefined ? [] : [["--read", inside.context, context]]),
    ].flat();
    const timer = new AbortController();
    // Two checks run at once: measuring millions of files takes minutes, in which the disk could become full.
    const looks = [hasGrown(home, spec.diskBytes, timer.signal), hasFilled(home, timer.signal)];
    watching = Promise.all(
      looks.map(async (look) => {
        try {
          if (await look) isFull = true;
        } catch (error) {
          unmeasured = error;
        }
        if (isFull || unmeasured !== undefined) stop.abort();
      }),
    );
    try {
      await run([host.shimBinary, "enclose", ...enclosure, "--", ...argv], {
        timeoutMs: spec.timeoutMs,
        signal,
        maxOutputBytes: 64 * 1024,
        // The environment has no variable of the server's own environment.
        env: environment(isBase ? "bases.conf" : "storage.conf"),
        onOutput: (text) => spec.lines?.write(text),
      });
    } finally {
      timer.abort();
    }
  } catch (error) {
    if (isFull)
      throw new RuntimeError("too_large", "The build wrote more than its disk limit.", {
        cause: error,
      });
    if (spec.signal.aborted) throw new RuntimeError("interrupted", "the build was aborted", { cause: error });
    if (unmeasured !== undefined)
      throw new RuntimeError("failed", "The disk use of the build could not be measured.", {
        cause: unmeasured,
      });
    if (await cgroups.oomKilled(join(spec.group, LEAF)).catch(() => false))
      throw new RuntimeError("no_capacity", "The build used more memory than its limit.", { cause: error });
    throw error;
  } finally {
    spec.lines?.flush();
    await watching;
    // The cleanup precedes the next run: a killed process releases its mounts and files at once, in its own namespaces.
    for (const { name, error } of await undo.unwind())
      log("build_not_cleaned_up", { group: spec.group, what: name, error: String(error) });
  }
}

/**
 * Resolves to true once the files below `home` have grown by more than `diskBytes`, and to false when `signal` aborts.
 */
async function hasGrown(home: string, diskBytes: number, signal: AbortSignal): Promise<boolean> {
  const before = await bytesBelow(home);
  return until(async () => (await bytesBelow(home)) - before > diskBytes, signal);
}

/** Resolves to true once the disk has too little free space, and to false when `signal` aborts. */
function hasFilled(home: string, signal: AbortSignal): Promise<boolean> {
  return until(async () => isShort(await statfs(home)), signal);
}

/** Returns whether free space or inodes are short. Some filesystems have no fixed number of inodes, and report zero. */
export function isShort({
  bavail,
  bsize,
  files,
  ffree,
}: Pick<StatsFs, "bavail" | "bsize" | "files" | "ffree">): boolean {
  return bavail * bsize < DISK_LEFT_BYTES || ffree < Math.min(files / 20, INODES_LEFT);
}

async function until(isOver: () => Promise<boolean>, signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, WATCH_MS);
      signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
    if (signal.aborted) return false;
    if (await isOver()) return true;
  }
  return false;
}

/**
 * Returns the usual limits, or lower limits of this process: a process cannot pass on higher limits than its own
 * (setrlimit(2)).
 */
async function stepLimits(): Promise<{ processes: number; openFiles: number }> {
  const own = await readFile("/proc/self/limits", "utf8");
  const hard = (name: string) =>
    Number(new RegExp(`^Max ${name}\\s+\\S+\\s+(\\d+)`, "m").exec(own)?.[1] ?? Infinity);
  return {
    processes: Math.min(PROCESSES, hard("processes")),
    openFiles: Math.min(16_384, hard("open files")),
  };
}

export async function bytesBelow(directory: string): Promise<number> {
  // Files that disappear during the count occupy no bytes.
  const { stdout } = await run(["du", "-sx", "--block-size=1", directory], {
    timeoutMs: MEASURE_MS,
    okCodes: [0, 1],
  });
  return Number.parseInt(stdout, 10) || 0;
}
