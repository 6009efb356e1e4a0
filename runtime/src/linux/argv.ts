/** The command lines of the shim and the disk image: pure, and tested as text. */
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

/** The error an engine logged last: as JSON, in runsc one object after the other without a separator. */
export function lastError(log: string): string | undefined {
  const messages = log.match(/"msg":"(?:[^"\\]|\\.)*"/g) ?? [];
  const last = messages.at(-1);
  return last === undefined ? undefined : (JSON.parse(`{${last}}`) as { msg: string }).msg;
}
