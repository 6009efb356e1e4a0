/** The command lines of volumes: pure, and tested as text. */

/**
 * Unlike a machine's disk, a volume is kept: it has a journal, so that a host that lost power loses nothing that was
 * synced, and inodes for small files. Made in 10 ms; an empty one of 10 GiB takes 250 KiB.
 */
export function mkfsVolumeArgv(image: string): string[] {
  return [
    "mkfs.ext4",
    "-q",
    "-F",
    "-m0",
    "-J",
    `size=${JOURNAL_MIB}`,
    "-O",
    "^resize_inode",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
    image,
  ];
}

export const JOURNAL_MIB = 64;

/** Replays the journal and repairs what is safe to; 10 ms where the volume was let go of in order. */
export function fsckArgv(image: string): string[] {
  return ["e2fsck", "-p", image];
}

/** Looks at everything and repairs it, whatever that takes. */
export function repairArgv(image: string): string[] {
  return ["e2fsck", "-f", "-y", image];
}

/**
 * Not noexec: the sentry maps programs that lie there. The inode tables lie in a file that began as a hole, so nothing
 * has to write zeros to them.
 */
export function mountVolumeArgv(image: string, directory: string): string[] {
  return ["mount", "-o", "loop,nodev,nosuid,noatime,noinit_itable,errors=remount-ro", image, directory];
}

/** Gives what was deleted back to the host: the image gets holes. */
export function trimArgv(mountPoint: string): string[] {
  return ["fstrim", mountPoint];
}

export function syncArgv(mountPoint: string): string[] {
  return ["sync", "--file-system", mountPoint];
}

/**
 * The device reads and writes the image past the host's page cache, while it is in use: what is cached is cached above
 * it already. Refused where the filesystem below cannot.
 */
export function directArgv(device: string): string[] {
  return ["losetup", "--direct-io=on", device];
}

/** Prints the loop devices that an image is attached to, `/dev/loop0: …` each; nothing where there are none. */
export function loopArgv(image: string): string[] {
  return ["losetup", "--associated", image];
}
