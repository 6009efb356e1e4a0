/** Command lines of runsc: pure, and tested as text. */
import type { MachineId } from "../driver.ts";
import type { MachinePaths } from "../linux/paths.ts";

export type Platform = "systrap" | "kvm";

export interface RunscInput {
  runsc: string;
  platform: Platform;
  paths: Pick<MachinePaths, "directory" | "disk" | "log" | "engineRoot">;
  id: MachineId;
}

/**
 * Flags, each present in the release of July 2024:
 * - overlay2: the writable layer is an unnamed file on the machine's own disk image, which bounds it.
 * - host-uds=open: PID 1 may connect to the one socket bound into the machine. PID 1 can bind no socket on the host.
 * - net-disconnect-ok: an established TCP connection does not spoil a checkpoint.
 * - cpu-num-from-quota: the kernel has as many cores as its programs may use (at least 2), not all of the
 *   host's. PID 1 shows programs the exact number (guest/src/cpus.c).
 */
function runscArgv({ runsc, platform, paths }: RunscInput, ...verb: string[]): string[] {
  return [
    runsc,
    `--root=${paths.engineRoot}`,
    `--log=${paths.log}`,
    "--log-format=json",
    `--platform=${platform}`,
    "--network=sandbox",
    `--overlay2=root:dir=${paths.disk}`,
    "--host-uds=open",
    "--net-disconnect-ok=true",
    "--cpu-num-from-quota",
    ...verb,
  ];
}

/** Returns the command that starts the machine and exits. */
export function runArgv(input: RunscInput): string[] {
  return runscArgv(input, "run", "--detach", `--bundle=${input.paths.directory}`, input.id);
}

/**
 * Returns the command that starts the machine from a checkpoint and exits. The machine then runs, and needs no resume.
 */
export function restoreArgv(input: RunscInput, from: { directory: string; direct: boolean }): string[] {
  const direct = from.direct ? ["--direct"] : [];
  const bundle = `--bundle=${input.paths.directory}`;
  return runscArgv(
    input,
    "restore",
    "--detach",
    ...direct,
    bundle,
    `--image-path=${from.directory}`,
    input.id,
  );
}

/** Returns the command that pauses every task inside; `resumeArgv` resumes them. */
export function pauseArgv(input: RunscInput): string[] {
  return runscArgv(input, "pause", input.id);
}

/** Returns the command that resumes a paused machine. The command fails for a machine that is not paused. */
export function resumeArgv(input: RunscInput): string[] {
  return runscArgv(input, "resume", input.id);
}

/** Returns the command that prints an object whose `status` is `running`, `paused` or `stopped`. */
export function stateArgv(input: RunscInput): string[] {
  return runscArgv(input, "state", input.id);
}

/**
 * Returns the command of a checkpoint, always with leave-running. A failed checkpoint without this flag loses the
 * machine; with the flag, the machine is only paused. Without compression, because deflate takes twice the time for a
 * heap.
 */
export function checkpointArgv(input: RunscInput, into: { directory: string; direct: boolean }): string[] {
  const direct = into.direct ? ["--direct"] : [];
  const image = `--image-path=${into.directory}`;
  return runscArgv(input, "checkpoint", "--leave-running", "--compression=none", ...direct, image, input.id);
}
