/**
 * Removes the resources of an installation from its host. Machines come first, because they use the mounts and the
 * network. The host id and the claim come last, so that after an interruption the next uninstall finds everything
 * again.
 */
import { lstatSync, readFileSync, readdirSync, realpathSync, rmdirSync, rmSync, unlinkSync } from "node:fs";
import { rm } from "node:fs/promises";
import path from "node:path";
import { Cgroups } from "@kontor/runtime/cgroup/cgroups.ts";
import { instanceNames } from "@kontor/runtime/network/addresses.ts";
import { isBelow } from "../backup/places.ts";
import { Failure } from "../lib/failure.ts";
import { run } from "../lib/run.ts";
import { hostPlaces, mountPoints, type Traces } from "./traces.ts";

const commandTimeoutMs = 20_000;

export async function removeMachines({ instance }: Traces): Promise<number> {
  if (instance === undefined) return 0;
  const cgroups = await Cgroups.detect(`kontor${instance}`).catch(() => undefined);
  const names = (await cgroups?.list()) ?? [];
  for (const name of names) {
    await cgroups?.killAll(name);
    await cgroups?.remove(name);
  }
  await cgroups?.removeParent();
  return names.length;
}

/** Unmounts everything below the installation's directories, and detaches the remaining loop devices. */
export async function removeMounts({ dataDir, directories }: Traces): Promise<void> {
  const roots = [realpathSync(dataDir), ...directories];
  const isOurs = (place: string) => roots.some((root) => place !== root && isBelow(place, root));
  for (const place of readMounts().filter(isOurs).toReversed()) {
    // The last process that used the mount may still be ending. The kernel frees a lazily detached mount with its last
    // user.
    if ((await run(["umount", place], { timeoutMs: commandTimeoutMs })).code === 0) continue;
    await run(["umount", "--lazy", place], { timeoutMs: commandTimeoutMs });
  }
  const left = readMounts().find(isOurs);
  if (left !== undefined) {
    throw new Failure(`${left} cannot be unmounted.`, {
      hint: "End the processes that use it (fuser -m), and run this again. No file was removed.",
    });
  }
  for (const device of loopDevices(isOurs)) {
    await run(["losetup", "--detach", device], { timeoutMs: commandTimeoutMs });
  }
}

export async function removeNetwork({ instance, namespaces, links, leases }: Traces): Promise<void> {
  for (const name of links) await run(["ip", "link", "del", name], { timeoutMs: commandTimeoutMs });
  for (const name of namespaces) await run(["ip", "netns", "del", name], { timeoutMs: commandTimeoutMs });
  for (const lease of leases) rmSync(lease, { force: true });
  if (instance === undefined) return;
  const { table, gateway } = instanceNames(instance);
  // An object may not exist any more; the command succeeds if it is gone.
  for (const family of ["inet", "netdev"]) {
    await run(["nft", "delete", "table", family, table], { timeoutMs: commandTimeoutMs });
  }
  await run(["ip", "addr", "del", `${gateway}/32`, "dev", "lo"], { timeoutMs: commandTimeoutMs });
  const { output } = await run(["nft", "list", "tables"], { timeoutMs: commandTimeoutMs });
  if (!output.split("\n").some((line) => line.endsWith(` ${table}`))) return;
  throw new Failure(`The nft table ${table} cannot be removed.`, { hint: "Run: nft list tables" });
}

export async function removeFiles(traces: Traces, places = hostPlaces): Promise<void> {
  const { dataDir, instance, directories, settings } = traces;
  const root = realpathSync(dataDir);
  for (const directory of directories) await removeTree(directory);
  for (const name of readdirSync(root).filter((entry) => !identifying.includes(entry))) {
    await rm(path.join(root, name), { recursive: true, force: true });
  }
  for (const file of settings) rmSync(file, { force: true });
  if (instance !== undefined) rmSync(path.join(places.run, "instances", String(instance)), { force: true });
  for (const directory of ["instances", "users", "."]) removeEmpty(path.join(places.run, directory));
  for (const name of identifying) rmSync(path.join(root, name), { force: true });
  // A data directory that is a mount point stays, without its content.
  if (!readMounts().includes(root)) rmdirSync(root);
  if (lstatSync(dataDir, { throwIfNoEntry: false })?.isSymbolicLink()) unlinkSync(dataDir);
}

/** Files that identify the installation and its other directories. */
const identifying = ["kontor.toml", "host-id"];

/**
 * Removes a directory. A symlink in place of the directory is removed, and its target stays. A mount point is only
 * emptied.
 */
export async function removeTree(directory: string): Promise<void> {
  if (lstatSync(directory, { throwIfNoEntry: false })?.isDirectory() && readMounts().includes(directory)) {
    for (const name of readdirSync(directory)) await rm(path.join(directory, name), { recursive: true });
  } else await rm(directory, { recursive: true, force: true });
}

function removeEmpty(directory: string): void {
  try {
    rmdirSync(directory);
  } catch {
    // Another installation has files in the directory.
  }
}

function readMounts(): string[] {
  return mountPoints(readFileSync("/proc/self/mountinfo", "utf8"));
}

/** Returns the loop devices whose file belongs to the installation (loop(4)). */
function loopDevices(isOurs: (place: string) => boolean): string[] {
  return readdirSync("/sys/block").flatMap((name) => {
    try {
      const file = readFileSync(`/sys/block/${name}/loop/backing_file`, "utf8").trim();
      return isOurs(file.replace(/ \(deleted\)$/, "")) ? [`/dev/${name}`] : [];
    } catch {
      return [];
    }
  });
}
