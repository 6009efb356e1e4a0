/** Command line of runc: pure, and tested as text. */
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
 * Returns the command that starts the machine of a bundle and exits. runc is never called again; its state is deleted
 * with the machine's directory. Network and limits are set before runc starts. In the machine's user namespace, runc
 * may neither enter a network namespace of the host nor change the limits of a process.
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
