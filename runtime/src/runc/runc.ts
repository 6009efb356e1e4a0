/** The command line of runc: pure, and tested as text. */
import type { MachineId } from "../driver.ts";
import type { MachinePaths } from "../linux/paths.ts";
import type { MachineLimits } from "./limits.ts";

export interface RuncInput {
  runc: string;
  paths: Pick<MachinePaths, "directory" | "log" | "engineRoot">;
  id: MachineId;
  netnsPath: string;
  limits: MachineLimits;
}

/**
 * Starts the machine of its bundle and returns. runc is never called again: all it keeps goes with the machine's
 * directory. Network and limits are set before it runs: it has no right to enter a network namespace of the host once it
 * is in the machine's user namespace, nor over the limits of a process in there, which root does not own.
 */
export function runcArgv({ runc, paths, id, netnsPath, limits }: RuncInput): string[] {
  const { openFiles, processes } = limits;
  return [
    "nsenter",
    `--net=${netnsPath}`,
    "prlimit",
    `--nofile=${openFiles}:${openFiles}`,
    `--nproc=${processes.soft}:${processes.hard}`,
    "--core=0:0",
    runc,
    `--root=${paths.engineRoot}`,
    `--log=${paths.log}`,
    "--log-format=json",
    "run",
    "--detach",
    `--bundle=${paths.directory}`,
    id,
  ];
}
