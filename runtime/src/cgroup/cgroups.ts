/**
 * Control groups of the machines: one group per machine below one group per installation, on a host with
 * cgroup v1 or v2. The group defines the machine: its members are alive, and an empty group is a dead
 * machine. Killing a machine means killing every process in its group. Groups are made with their limits
 * before runsc runs, and runsc joins them unchanged. `remove` deletes the groups that runsc adds in other v1
 * trees.
 */
import { readFileSync } from "node:fs";
import { mkdir, readFile, readdir, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";
import { RuntimeError, type Isolation, type Resources } from "../driver.ts";
import { Leftovers, type LeftoverLog } from "../leftovers.ts";
import {
  CONTROLLERS,
  flatValue,
  freezerFiles,
  limitWrites,
  parseLayout,
  type CgroupLayout,
  type CgroupWrite,
  type Controller,
} from "./layout.ts";

const FREEZE_TIMEOUT_MS = 5_000;
/** Timeout of a kill: on a busy host, the kernel needs time to free gigabytes of guest memory. */
const KILL_TIMEOUT_MS = 20_000;
const RMDIR_TIMEOUT_MS = 5_000;
/** Timeout of one attempt to remove a leftover; failed attempts are retried. */
export const LEFTOVER_TIMEOUT_MS = 5_000;

export interface CgroupUsage {
  /** Time of the CPU reading. */
  at: Date;
  cpuSeconds: number;
  memoryBytes: number;
  processes: number;
}

export class Cgroups {
  readonly layout: CgroupLayout;
  readonly #parent: string;
  readonly #leftovers: Leftovers;

  /** Control groups below `parent`, one path component below the root of every tree, for example `kontor0`. */
  constructor(layout: CgroupLayout, parent: string, log: LeftoverLog = warn) {
    this.layout = layout;
    this.#parent = parent;
    this.#leftovers = new Leftovers({ remove: (name) => this.#removeTree(name), log });
  }

  /** Fails with `host_unsupported` if the host has no usable cgroups. */
  static async detect(parent: string, log?: LeftoverLog): Promise<Cgroups> {
    const layout = parseLayout(await readFile("/proc/self/mountinfo", "utf8"));
    if (layout === undefined) {
      throw new RuntimeError(
        "host_unsupported",
        "this host mounts neither cgroup v2 nor all of the v1 controllers memory, cpu, cpuacct, pids and freezer",
      );
    }
    return new Cgroups(layout, parent, log);
  }

  /** Makes the installation's own group. On v2, enables the controllers for the machines' groups. */
  async open(): Promise<void> {
    await Promise.all(this.#ourTrees().map((tree) => mkdir(join(tree, this.#parent), { recursive: true })));
    if (this.layout.version === "v1") return;
    const [tree = ""] = this.layout.allTrees;
    for (const directory of [tree, join(tree, this.#parent)]) {
      await writeFile(join(directory, "cgroup.subtree_control"), "+cpu +memory +pids").catch((error) => {
        throw new RuntimeError(
          "host_unsupported",
          `the cgroup controllers cpu, memory and pids cannot be enabled in ${directory}`,
          { cause: error },
        );
      });
    }
  }

  /** Sets the installation's share of the host's processors under contention. The usual value is 1024. */
  async setWeight(shares: number): Promise<void> {
    const tree = this.layout.trees.cpu;
    if (this.layout.version === "v1")
      return writeFile(join(tree, this.#parent, "cpu.shares"), String(shares), { flag: "r+" });
    // Converts between the scales like systemd and runc: from (2 to 262144, default 1024) to (1 to 10000,
    // default 100).
    const weight = Math.max(1, Math.round((shares * 100) / 1024));
    return writeFile(join(tree, this.#parent, "cpu.weight"), String(weight), { flag: "r+" });
  }

  /** Returns the path of the group in an OCI spec: absolute, from the root of every tree. */
  pathOf(name: string): string {
    return `/${this.#parent}/${name}`;
  }

  /** Returns the names of all groups below the installation's own group, made by any process. */
  async list(): Promise<string[]> {
    const names = await Promise.all(
      this.layout.allTrees.map(async (tree) => {
        const entries = await readdir(join(tree, this.#parent), { withFileTypes: true }).catch(nothing);
        return (entries ?? []).filter((entry) => entry.isDirectory()).map((entry) => entry.name);
      }),
    );
    return [...new Set(names.flat())];
  }

  /**
   * Creates the group without memory headroom: gVisor reads the limit at its start and shows it to its programs.
   * `setLimits` adds the headroom.
   */
  async create(name: string, resources: Omit<Resources, "diskBytes">, isolation: Isolation): Promise<void> {
    await this.#leftovers.release(name);
    await Promise.all(
      this.#ourTrees().map((tree) => mkdir(join(tree, this.#parent, name), { recursive: true })),
    );
    await this.#write(limitWrites(this.layout, this.pathOf(name), resources, isolation, 0));
  }

  /**
   * Takes effect at once, also on a running machine. The limit cannot shrink below memory that is in use and
   * cannot be reclaimed.
   */
  async setLimits(
    name: string,
    resources: Omit<Resources, "diskBytes">,
    isolation: Isolation,
  ): Promise<void> {
    await this.#write(limitWrites(this.layout, this.pathOf(name), resources, isolation));
  }

  async #write(writes: readonly CgroupWrite[]): Promise<void> {
    for (const { path, value, optional } of writes) {
      await writeFile(path, value, { flag: "r+" }).catch((error: NodeJS.ErrnoException) => {
        if (optional === true && (error.code === "ENOENT" || error.code === "EACCES")) return;
        if (error.code === "EBUSY") {
          throw new RuntimeError("no_capacity", "the machine uses more memory than its new limit", {
            cause: error,
          });
        }
        throw new RuntimeError("failed", `the kernel did not accept ${value} in ${path}`, { cause: error });
      });
    }
  }

  /** Resolves when every task is frozen. A group that dies meanwhile counts as frozen. */
  async freeze(name: string): Promise<void> {
    const files = freezerFiles(this.layout, this.pathOf(name));
    const deadline = performance.now() + FREEZE_TIMEOUT_MS;
    for (let waitMs = 0; ; waitMs = Math.min(waitMs + 1, 20)) {
      // v1 can stay FREEZING if a task forks meanwhile; another write makes the kernel check again
      // (freezer-subsystem.rst).
      await writeFile(files.control, files.frozen, { flag: "r+" });
      if (files.isFrozen.test(await readFile(files.state, "utf8"))) return;
      if (performance.now() > deadline) {
        await writeFile(files.control, files.thawed, { flag: "r+" });
        throw new RuntimeError("timeout", `the machine could not be frozen within ${FREEZE_TIMEOUT_MS} ms`);
      }
      await sleep(waitMs);
    }
  }

  async thaw(name: string): Promise<void> {
    const files = freezerFiles(this.layout, this.pathOf(name));
    await writeFile(files.control, files.thawed, { flag: "r+" });
  }

  async isFrozen(name: string): Promise<boolean> {
    const files = freezerFiles(this.layout, this.pathOf(name));
    return files.isFrozen.test((await readFile(files.state, "utf8").catch(nothing)) ?? "");
  }

  /** Returns the process ids in the group, without zombies. Empty if there is no group. */
  async processes(name: string): Promise<number[]> {
    // Other errors, such as too many open files, must not make a live machine look dead.
    const text = await readFile(this.#file("pids", name, "cgroup.procs"), "utf8").catch(
      (error: NodeJS.ErrnoException) => {
        if (error.code !== "ENOENT" && error.code !== "ENODEV") throw error;
        return undefined;
      },
    );
    return (text ?? "").split("\n").filter(Boolean).map(Number);
  }

  /** True once the kernel has killed a process in the group for its memory limit. */
  async oomKilled(name: string): Promise<boolean> {
    const file = this.layout.version === "v2" ? "memory.events" : "memory.oom_control";
    const text = (await readFile(this.#file("memory", name, file), "utf8").catch(nothing)) ?? "";
    return flatValue(text, "oom_kill") > 0;
  }

  async usage(name: string): Promise<CgroupUsage> {
    const isMissing = (error: unknown): never => {
      throw new RuntimeError("not_running", "the machine has no control group", { cause: error });
    };
    const read = (controller: Controller, file: string) =>
      readFile(this.#file(controller, name, file), "utf8").catch(isMissing);
    const { at, text: cpu } = this.#readCpu(name, isMissing);
    if (this.layout.version === "v2") {
      const [memory, memoryStat, tasks] = await Promise.all([
        read("memory", "memory.current"),
        read("memory", "memory.stat"),
        read("pids", "pids.current"),
      ]);
      return {
        at,
        cpuSeconds: flatValue(cpu, "usage_usec") / 1e6,
        memoryBytes: Math.max(0, Number(memory) - flatValue(memoryStat, "inactive_file")),
        processes: Number(tasks),
      };
    }
    const [memory, memoryStat, tasks] = await Promise.all([
      read("memory", "memory.usage_in_bytes"),
      read("memory", "memory.stat"),
      read("pids", "pids.current"),
    ]);
    return {
      at,
      cpuSeconds: Number(cpu) / 1e9,
      memoryBytes: Math.max(0, Number(memory) - flatValue(memoryStat, "total_inactive_file")),
      processes: Number(tasks),
    };
  }

  /**
   * Reads the CPU counter and the time synchronously. On a busy host, other callbacks between the two reads would take
   * up to a tenth of a second. The computed usage would then exceed the machine's cores. The clock is monotonic.
   */
  #readCpu(name: string, isMissing: (error: unknown) => never): { at: Date; text: string } {
    const [controller, file] =
      this.layout.version === "v2" ? (["cpu", "cpu.stat"] as const) : (["cpuacct", "cpuacct.usage"] as const);
    const path = this.#file(controller, name, file);
    try {
      const text = readFileSync(path, "utf8");
      return { at: new Date(performance.timeOrigin + performance.now()), text };
    } catch (error) {
      return isMissing(error);
    }
  }

  /**
   * Sends SIGKILL to every process of the group and of its descendants, in every tree, until all are empty. A
   * task may be in a group of one tree alone, because a process with write access to a cgroup mount can make
   * groups there. On v1, a frozen task dies only after a thaw. The signal is sent before the thaw, so that
   * the task does not run again.
   */
  async killAll(name: string, timeoutMs = KILL_TIMEOUT_MS): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 50)) {
      const groups = await this.#groups(name);
      const pids = [...new Set((await Promise.all(groups.map(processesIn))).flat())];
      if (pids.length === 0) return;
      for (const pid of pids) killIfThere(pid);
      // Thaws parents before children: a group below a frozen one stays frozen (freezer-subsystem.rst).
      for (const group of groups) await this.#thawIn(group);
      if (performance.now() > deadline) {
        throw new RuntimeError("timeout", `processes ${pids.join(", ")} outlive SIGKILL`);
      }
      await sleep(waitMs);
    }
  }

  /**
   * Removes the group and its descendants from every tree. The groups must have no process; the last task may still be
   * exiting.
   */
  async remove(name: string): Promise<void> {
    // Removes child groups before their parents.
    for (const group of (await this.#groups(name)).toReversed()) await removeGroup(group);
  }

  /** Makes a group for processes below the group. Returns the files through which a process joins the new group. */
  async makeLeaf(name: string, leaf: string): Promise<string[]> {
    // On a hybrid host, the v2 tree counts too: without a group there, the processes would be in the server's
    // group.
    const trees = new Set([
      ...this.#ourTrees(),
      ...(this.layout.unified === undefined ? [] : [this.layout.unified]),
    ]);
    const directories = [...trees].map((tree) => join(tree, this.#parent, name, leaf));
    await Promise.all(directories.map((directory) => mkdir(directory, { recursive: true })));
    return directories.map((directory) => join(directory, "cgroup.procs"));
  }

  /**
   * Kills all processes in the group and removes it with its descendants. A group that cannot be removed is logged, set
   * aside and retried. Such a group never fails a start or a build.
   */
  async removeTree(name: string): Promise<void> {
    await this.#leftovers.remove(name);
  }

  /** Removes the installation's own group, unless it contains a group that could not be removed. */
  async removeParent(): Promise<void> {
    await this.#leftovers.close();
    if (this.#leftovers.remaining.length > 0) return;
    await Promise.all(this.layout.allTrees.map((tree) => removeGroup(join(tree, this.#parent))));
  }

  async #removeTree(name: string): Promise<void> {
    await this.killAll(name, LEFTOVER_TIMEOUT_MS);
    await this.remove(name);
  }

  /** Returns the directories of the group and its descendants in every tree, parents first. */
  async #groups(name: string): Promise<string[]> {
    const trees = this.layout.allTrees.map((tree) => groupsFrom(join(tree, this.#parent, name)));
    return (await Promise.all(trees)).flat();
  }

  async #thawIn(group: string): Promise<void> {
    const { version, trees } = this.layout;
    const isV1Freezer = version === "v1" && group.startsWith(`${trees.freezer}/`);
    const [file, value] = isV1Freezer ? ["freezer.state", "THAWED"] : ["cgroup.freeze", "0"];
    await writeFile(join(group, file), value, { flag: "r+" }).catch(ignoreMissing);
  }

  #ourTrees(): string[] {
    return [...new Set(CONTROLLERS.map((controller) => this.layout.trees[controller]))];
  }

  #file(controller: Controller, name: string, file: string): string {
    return join(this.layout.trees[controller], this.#parent, name, file);
  }
}

async function removeGroup(directory: string): Promise<void> {
  const deadline = performance.now() + RMDIR_TIMEOUT_MS;
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 50)) {
    try {
      await rmdir(directory);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === "ENOENT") return;
      if (code !== "EBUSY" || performance.now() > deadline) throw error;
      await sleep(waitMs);
    }
  }
}

/** Returns the directories of the group and its descendants, parents first. Empty if there is no such group. */
async function groupsFrom(directory: string): Promise<string[]> {
  const entries = await readdir(directory, { withFileTypes: true }).catch(nothing);
  if (entries === undefined) return [];
  const below = entries
    .filter((entry) => entry.isDirectory())
    .map((entry) => groupsFrom(join(directory, entry.name)));
  return [directory, ...(await Promise.all(below)).flat()];
}

/**
 * Returns the process ids in a group. A threaded group of v2 lists only threads (cgroup-v2.rst); kill(2) accepts a
 * thread's id for its process.
 */
async function processesIn(group: string): Promise<number[]> {
  const read = (file: string) => readFile(join(group, file), "utf8");
  const text = await read("cgroup.procs")
    .catch(() => read("cgroup.threads"))
    .catch(nothing);
  // Zero stands for a process of another PID namespace.
  return (text ?? "")
    .split("\n")
    .map(Number)
    .filter((pid) => pid > 0);
}

function killIfThere(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    ignoreMissing(error as NodeJS.ErrnoException);
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOENT" && error.code !== "ESRCH") throw error;
}

const nothing = () => undefined;

function warn(event: string, fields: Record<string, unknown>): void {
  process.emitWarning(`${event} ${inspect(fields)}`);
}
