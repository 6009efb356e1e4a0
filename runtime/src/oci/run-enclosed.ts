/**
 * One run of a builder: in an enclosure, a control group and a network of its own, and the end of all of it. What it
 * may take of memory, processors, disk and time is its spec's; what it left half done goes with it.
 */
import { mkdir, readFile, rm, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Cgroups } from "../cgroup/cgroups.ts";
import { type LentNetwork, RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";
import { ENCLOSED } from "../rootfs/debian.ts";
import { UndoStack } from "../undo.ts";
import { configuration, environment, inside } from "./buildah.ts";
import type { Enclosure } from "./enclosure.ts";
import type { LogLines } from "./log.ts";

export interface Run {
  group: string;
  /** Whose store and caches it writes, and where the bases are; theirs is written by their own import alone. */
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
  /** A run's own directory lies below it. */
  builds: string;
  log: (event: string, fields: Record<string, unknown>) => void;
}

const program = fileURLToPath(new URL("./enclosure.ts", import.meta.url));
const MEASURE_MS = 2 * 60_000;
const PROCESSES = 1024;
/** What the disk is looked at for, while a build writes: a second of a fast disk is what it can go beyond. */
const WATCH_MS = 1_000;
const DISK_LEFT_BYTES = 1024 ** 3;

export async function runEnclosed(
  host: RunHost,
  spec: Run,
  argv: (cgroup: string) => string[],
): Promise<void> {
  const { cgroups, log } = host;
  const { home, bases, isBase } = spec.store;
  const directory = join(host.builds, spec.group);
  const undo = new UndoStack();
  const stop = new AbortController();
  const signal = AbortSignal.any([spec.signal, stop.signal]);
  let isFull = false;
  let watching: Promise<void> | undefined;
  try {
    undo.add("directory", () => rm(directory, { recursive: true, force: true }));
    await mkdir(join(directory, "root"), { recursive: true, mode: 0o700 });
    for (const path of ["store", "caches"]) await mkdir(join(home, path), { recursive: true, mode: 0o700 });
    const limits = { fileBytes: spec.diskBytes, processes: PROCESSES, openFiles: await openFilesMax() };
    const files = { ...configuration(limits), ...spec.files };
    for (const [name, text] of Object.entries(files))
      await writeFile(join(directory, name), text, { mode: 0o600 });
    undo.add("group", () => cgroups.removeTree(spec.group));
    const { memoryBytes, vcpus } = spec;
    // One step that is too large ends, and the builder says which.
    await cgroups.create(spec.group, { memoryBytes, vcpus, maxProcesses: PROCESSES }, "native");
    // A leaf: what has groups below it may hold no process itself (cgroup v2).
    const cgroupProcs = await cgroups.makeLeaf(spec.group, "builder");
    const enclosure: Enclosure = {
      root: join(directory, "root"),
      binds: [
        { at: inside.bases, from: join(bases, "store"), isWritable: isBase },
        ...(isBase ? [] : [{ at: inside.store, from: join(home, "store"), isWritable: true }]),
        { at: inside.caches, from: join(home, "caches"), isWritable: true },
        { at: inside.build, from: directory, isWritable: true },
        ...(spec.context === undefined
          ? []
          : [{ at: inside.context, from: spec.context, isWritable: false }]),
      ],
      resolver: spec.network?.resolver ?? null,
      cgroupProcs,
      argv: argv(cgroups.pathOf(spec.group)),
      env: environment(isBase ? "bases.conf" : "storage.conf"),
    };
    const timer = new AbortController();
    watching = watch(home, spec.diskBytes, timer.signal).then((hasFilled) => {
      isFull = hasFilled;
      if (hasFilled) stop.abort();
    });
    try {
      await run([...namespaces(spec.network), process.execPath, program, JSON.stringify(enclosure)], {
        timeoutMs: spec.timeoutMs,
        signal,
        maxOutputBytes: 64 * 1024,
        // Nothing of the server's own environment.
        env: { PATH: process.env["PATH"], NODE_NO_WARNINGS: "1" },
        onOutput: (text) => spec.lines?.write(text),
      });
    } finally {
      timer.abort();
    }
  } catch (error) {
    if (isFull)
      throw new RuntimeError("too_large", "The build wrote more than it may on its disk.", {
        cause: error,
      });
    if (spec.signal.aborted) throw new RuntimeError("interrupted", "the build was ended", { cause: error });
    if (await cgroups.oomKilled(spec.group).catch(() => false))
      throw new RuntimeError("no_capacity", "The build used more memory than it may.", { cause: error });
    throw error;
  } finally {
    spec.lines?.flush();
    await watching;
    // Before the next: what is killed lets go of mounts and files at once, in its own namespaces.
    for (const { name, error } of await undo.unwind())
      log("build_not_cleaned_up", { group: spec.group, what: name, error: String(error) });
  }
}

/** True once it has written more than it may, or the disk has no room left; false when `signal` aborts. */
async function watch(home: string, diskBytes: number, signal: AbortSignal): Promise<boolean> {
  const before = await bytesBelow(home);
  while (!signal.aborted) {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, WATCH_MS);
      signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
    if (signal.aborted) return false;
    const disk = await statfs(home);
    if (disk.bavail * disk.bsize < DISK_LEFT_BYTES) return true;
    if ((await bytesBelow(home)) - before > diskBytes) return true;
  }
  return false;
}

function namespaces(network: LentNetwork | null): string[] {
  const own = [...ENCLOSED, "--ipc", "--uts"];
  return network === null ? [...own, "--net"] : [...own, "nsenter", `--net=${network.netnsPath}`];
}

/** A process that may not raise limits cannot give more than it has (setrlimit(2)). */
async function openFilesMax(): Promise<number> {
  const own = /^Max open files\s+\S+\s+(\d+)/m.exec(await readFile("/proc/self/limits", "utf8"))?.[1];
  return Math.min(16_384, Number(own ?? 1024));
}

export async function bytesBelow(directory: string): Promise<number> {
  // What goes meanwhile is none of it.
  const { stdout } = await run(["du", "-sx", "--block-size=1", directory], {
    timeoutMs: MEASURE_MS,
    okCodes: [0, 1],
  });
  return Number.parseInt(stdout, 10) || 0;
}
