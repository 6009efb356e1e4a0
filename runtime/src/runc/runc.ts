/** The command line of runc: pure, and tested as text. */
import type { MachineId } from "../driver.ts";
import type { MachinePaths } from "../linux/paths.ts";

export interface RuncInput {
  runc: string;
  paths: Pick<MachinePaths, "directory" | "log" | "engineRoot">;
  id: MachineId;
}

/** Starts the machine of its bundle and returns. runc is never asked again: all it keeps goes with the machine's directory. */
export function runcArgv({ runc, paths, id }: RuncInput): string[] {
  return [
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
