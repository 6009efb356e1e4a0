/** The command lines of runsc, the shim and the disk image: pure, and tested as text. */
import type { MachineId } from "../driver.ts";
import type { MachinePaths } from "./paths.ts";

export type Platform = "systrap" | "kvm";

export interface RunscInput {
  runsc: string;
  platform: Platform;
  paths: Pick<MachinePaths, "directory" | "disk" | "log" | "runscRoot">;
  id: MachineId;
}

/**
 * `run --detach` starts the machine and returns. Flags, each present in the release of July 2024:
 * - overlay2: the writable layer is an unnamed file on the machine's own disk image, which bounds it.
 * - host-uds=open: PID 1 may dial the one socket bound into the machine; it can bind none on the host.
 * - net-disconnect-ok: an established TCP connection does not spoil a checkpoint.
 * - cpu-num-from-quota: programs see as many cores as they may use (never below 2), not all of the host's.
 */
export function runArgv({ runsc, platform, paths, id }: RunscInput): string[] {
  return [
    runsc,
    `--root=${paths.runscRoot}`,
    `--log=${paths.log}`,
    "--log-format=json",
    `--platform=${platform}`,
    "--network=sandbox",
    `--overlay2=root:dir=${paths.disk}`,
    "--host-uds=open",
    "--net-disconnect-ok=true",
    "--cpu-num-from-quota",
    "run",
    "--detach",
    `--bundle=${paths.directory}`,
    id,
  ];
}

/** The descriptor the shim writes its status line to. */
export const SHIM_STATUS_FD = 3;

export function shimArgv(shim: string, options: { maskProcSysNet: boolean }, program: string[]): string[] {
  return [
    shim,
    "run",
    "--status-fd",
    String(SHIM_STATUS_FD),
    ...(options.maskProcSysNet ? ["--mask-proc-sys-net"] : []),
    "--",
    ...program,
  ];
}

/**
 * One file lives on this filesystem and dies with the machine: no journal, no reserved blocks and 16 inodes give the
 * guest all but 64 KiB of 10 GiB, and make it in 5 ms.
 */
export function mkfsArgv(image: string): string[] {
  return [
    "mkfs.ext4",
    "-q",
    "-F",
    "-m0",
    "-N16",
    "-O",
    "^has_journal,^resize_inode",
    "-E",
    "lazy_itable_init=1,nodiscard",
    image,
  ];
}

/** Not noexec: the sentry maps programs the guest wrote from the file on this disk. */
export function mountArgv(image: string, directory: string): string[] {
  return ["mount", "-o", "loop,nodev,nosuid,noatime", image, directory];
}

/** The error runsc logged last: `--log-format=json` writes objects one after the other without a separator. */
export function lastError(log: string): string | undefined {
  const messages = log.match(/"msg":"(?:[^"\\]|\\.)*"/g) ?? [];
  const last = messages.at(-1);
  return last === undefined ? undefined : (JSON.parse(`{${last}}`) as { msg: string }).msg;
}
